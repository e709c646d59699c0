package run

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/bench/result"
)

// Store is a run's file of results. It is rewritten whole and renamed after each step, so a run that is killed leaves
// a file that is as it was after its last step.
type Store struct {
	dir     string
	run     result.Run
	resumed bool
	// since and before are for the time that a run took, over all of its sittings.
	since  time.Time
	before float64
}

// OpenStore opens dir's file. With resume what is in it stays; else an earlier run is set aside under the time of its start.
func OpenStore(dir string, resume bool) (*Store, error) {
	s := &Store{dir: dir, since: time.Now()}
	run, err := result.Read(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, nil
	case err != nil:
		return nil, err
	case !resume:
		return s, s.setAside(run.Environment.Started)
	}
	s.run, s.resumed = run, true
	s.before = elapsed(run)
	return s, nil
}

// elapsed is how long a run has taken so far: to its last result.
func elapsed(run result.Run) float64 {
	if run.Environment.Took > 0 {
		return run.Environment.Took
	}
	start, err := time.Parse(time.RFC3339, run.Environment.Started)
	if err != nil || len(run.Results) == 0 {
		return 0
	}
	last, err := time.Parse(time.RFC3339, run.Results[len(run.Results)-1].At)
	if err != nil {
		return 0
	}
	return last.Sub(start).Seconds()
}

func (s *Store) setAside(started string) error {
	name := "results-" + strings.NewReplacer(":", "", "-", "").Replace(started) + ".jsonl"
	return os.Rename(s.file(), filepath.Join(s.dir, name))
}

func (s *Store) file() string { return filepath.Join(s.dir, result.File) }

// Run is what there is so far.
func (s *Store) Run() result.Run { return s.run }

// Forget drops the results of steps, so that they are measured again.
func (s *Store) Forget(match func(step string) bool) {
	s.run.Results = slices.DeleteFunc(s.run.Results, func(r result.Result) bool { return match(r.Step) })
}

// Done says that a step has a result, and no error.
func (s *Store) Done(step string) bool {
	for _, r := range s.run.Results {
		if r.Step == step {
			return r.Error == ""
		}
	}
	return false
}

// Begin sets what the figures depend on. A resumed run has to be on the same machine with the same versions: figures of
// two machines do not go into one table.
func (s *Store) Begin(env result.Environment) error {
	if !s.resumed {
		s.run.Environment = env
		return s.write()
	}
	have := s.run.Environment
	for name, version := range env.Versions {
		if had, ok := have.Versions[name]; ok && had != version {
			return fmt.Errorf("the run in %s was begun with %s %s, and this is %s: leave out --resume, or use another --dir", s.dir, name, had, version)
		}
	}
	if have.Machine != env.Machine || have.Quick != env.Quick {
		return fmt.Errorf("the run in %s was begun on another machine or in another size: leave out --resume, or use another --dir", s.dir)
	}
	if have.Versions == nil {
		have.Versions = map[string]string{}
	}
	maps.Copy(have.Versions, env.Versions)
	maps.Copy(have.Settings, env.Settings)
	s.run.Environment = have
	return s.write()
}

// Add writes a step down, in place of an earlier result of it.
func (s *Store) Add(r result.Result) error {
	for i := range s.run.Results {
		if s.run.Results[i].Step == r.Step {
			s.run.Results[i] = r
			return s.write()
		}
	}
	s.run.Results = append(s.run.Results, r)
	return s.write()
}

// Finish notes how long the run took.
func (s *Store) Finish() error {
	s.run.Environment.Took = s.before + time.Since(s.since).Seconds()
	return s.write()
}

func (s *Store) write() error {
	var b bytes.Buffer
	lines := json.NewEncoder(&b)
	if err := lines.Encode(s.run.Environment); err != nil {
		return err
	}
	for _, r := range s.run.Results {
		if err := lines.Encode(r); err != nil {
			return err
		}
	}
	tmp := s.file() + ".new"
	if err := os.WriteFile(tmp, b.Bytes(), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, s.file())
}
