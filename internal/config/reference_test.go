package config

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated files instead of comparing them")

const (
	exampleFile = "../../postrider.example.yaml"
	manualFile  = "../../docs/configuration.md"
)

// shorthands are documented as one key although they have a long form.
var shorthands = []string{
	"sources[].table.", "sources[].mapping.timestamp.", "sources[].mapping.headers[].",
	"sources[].mapping.envelope.fields[].", "sources[].routes[].match[].",
	"sources[].purge.age_column.",
}

func TestReferenceListsEveryKeyOfTheStructs(t *testing.T) {
	t.Parallel()
	var inCode, documented []string
	for _, path := range structPaths(reflect.TypeFor[Config](), "") {
		if !slices.ContainsFunc(shorthands, func(s string) bool { return strings.HasPrefix(path, s) }) {
			inCode = append(inCode, path)
		}
	}
	for _, key := range Reference() {
		documented = append(documented, key.Path)
		if key.Doc == "" || key.Type == "" {
			t.Errorf("%s: no documentation", key.Path)
		}
	}
	slices.Sort(inCode)
	slices.Sort(documented)
	for _, path := range inCode {
		if !slices.Contains(documented, path) {
			t.Errorf("%s is in the structs but not in the reference", path)
		}
	}
	for _, path := range documented {
		if !slices.Contains(inCode, path) {
			t.Errorf("%s is in the reference but not in the structs", path)
		}
	}
}

func structPaths(t reflect.Type, path string) []string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() == reflect.Slice {
		if t.Elem().Kind() != reflect.Struct {
			return nil
		}
		return structPaths(t.Elem(), path+"[]")
	}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[Secret]() {
		return nil
	}
	var paths []string
	for i := range t.NumField() {
		if name := keyOf(t.Field(i)); name != "" {
			at := join(path, name)
			paths = append(append(paths, at), structPaths(t.Field(i).Type, at)...)
		}
	}
	return paths
}

// TestExampleIsCurrent is a drift test: go test ./internal/config -update writes the file.
func TestExampleIsCurrent(t *testing.T) {
	t.Parallel()
	want, err := Example()
	if err != nil {
		t.Fatal(err)
	}
	compareOrWrite(t, exampleFile, want)
}

// TestManualIsCurrent is the same for the tables of docs/configuration.md.
func TestManualIsCurrent(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(manualFile)
	if err != nil {
		t.Fatal(err)
	}
	want, err := ReplaceTables(string(doc))
	if err != nil {
		t.Fatal(err)
	}
	compareOrWrite(t, manualFile, want)
}

func compareOrWrite(t *testing.T, file, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is out of date; run: go test ./internal/config -update", filepath.Base(file))
	}
}

func TestExampleIsAValidConfiguration(t *testing.T) {
	t.Parallel()
	text, err := Example()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Parse(exampleFile, []byte(text), testEnvironment(nil)); err != nil {
		t.Fatal(err)
	}
}

// exclusive keys cannot stand beside others; the rest of the sample can be in force at once.
var exclusive = regexp.MustCompile(`^ +# (dsn|dsn_file|password|ssl(rootcert|cert|key)|(  )?(password|ca_file|cert_file|key_file)|profile|regex|by|replacement):`)

func TestExampleIsValidWithEveryCommentTakenAway(t *testing.T) {
	t.Parallel()
	text, err := Example()
	if err != nil {
		t.Fatal(err)
	}
	optional := regexp.MustCompile(`^( *)# ( *[a-z_]+:( .*)?)$`)
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		if !exclusive.MatchString(line) {
			line = optional.ReplaceAllString(line, "$1$2")
		}
		out = append(out, line)
	}
	_, err = Parse(exampleFile, []byte(strings.Join(out, "\n")), testEnvironment(nil))
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(out, "\n"))
	}
}
