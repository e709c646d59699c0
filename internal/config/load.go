package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"

	"github.com/postrider/postrider/internal/operr"
)

// Environment is what a configuration may refer to outside of itself.
type Environment struct {
	// LookupEnv finds a variable; nil: the process's environment.
	LookupEnv func(name string) (string, bool)
	// ReadFile reads a file that the configuration names; nil: the disk.
	ReadFile func(path string) ([]byte, error)
}

func (e Environment) withDefaults() Environment {
	if e.LookupEnv == nil {
		e.LookupEnv = os.LookupEnv
	}
	if e.ReadFile == nil {
		e.ReadFile = os.ReadFile
	}
	return e
}

// Load reads and checks the file. The error is an *operr.Error of class Config;
// where the content is at fault it wraps *Problems.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, &operr.Error{
			Class: operr.Config, Op: "read configuration", Subject: path, Err: reasonOf(err),
			Hint: "name the file with --config; postrider.example.yaml shows every key",
		}
	}
	return Parse(path, data, Environment{})
}

// Parse checks a configuration that was read from the file of this name, which
// also says where relative *_file paths start.
func Parse(path string, data []byte, env Environment) (*Config, error) {
	env = env.withDefaults()
	r := newReport()
	if c := decode(data, r, env); c != nil {
		c.fillDefaults()
		c.loadSecrets(r, files{dir: filepath.Dir(path), read: env.ReadFile})
		c.validate(r)
		if len(r.list) == 0 {
			return c, nil
		}
	}
	return nil, &operr.Error{
		Class: operr.Config, Op: "check configuration", Subject: path, Err: r.problems(path),
		Hint: "correct the keys named above; docs/configuration.md describes each",
	}
}

// decode is nil where the text is not YAML; all else would be a consequence of it.
func decode(data []byte, r *report, env Environment) *Config {
	root := parseTree(data, r)
	if len(r.list) > 0 {
		return nil
	}
	c := defaultConfig()
	if root != nil {
		d := &decoder{report: r, lookup: env.LookupEnv}
		d.lines[""] = root.Line
		d.value(root, reflect.ValueOf(c).Elem(), "")
	}
	return c
}

// reasonOf leaves out the path that os repeats.
func reasonOf(err error) error {
	if pathErr := new(fs.PathError); errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}
