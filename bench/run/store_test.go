package run

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/postrider/postrider/bench/result"
)

func begun(t *testing.T, dir string, resume bool, env result.Environment) *Store {
	t.Helper()
	s, err := OpenStore(dir, resume)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Begin(env); err != nil {
		t.Fatal(err)
	}
	return s
}

func environment(postgresql string) result.Environment {
	return result.Environment{
		Machine: "two cores", Started: "2026-01-02T03:04:05Z",
		Versions: map[string]string{"postgresql": postgresql}, Settings: map[string]string{},
	}
}

func add(t *testing.T, s *Store, r result.Result) {
	t.Helper()
	if err := s.Add(r); err != nil {
		t.Fatal(err)
	}
}

func TestAResumedRunKeepsWhatWasMeasured(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := begun(t, dir, false, environment("15.1"))
	add(t, s, result.Result{Step: "drain/1/peek", Events: 1})
	add(t, s, result.Result{Step: "drain/1/debezium", Error: "no jars"})

	s = begun(t, dir, true, environment("15.1"))
	if !s.Done("drain/1/peek") || s.Done("drain/1/debezium") || s.Done("drain/2/peek") {
		t.Error("only the step that was measured is done")
	}
	add(t, s, result.Result{Step: "drain/1/debezium", Events: 2})
	if err := s.Finish(); err != nil {
		t.Fatal(err)
	}
	run, err := result.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(run.Results) != 2 || run.Results[1].Error != "" || run.Results[1].Events != 2 {
		t.Errorf("got %+v", run.Results)
	}
}

func TestAStepIsMeasuredAgain(t *testing.T) {
	t.Parallel()
	s := begun(t, t.TempDir(), false, environment("15.1"))
	for _, step := range []string{"drain/1/peek", "latency/10/1/polling"} {
		add(t, s, result.Result{Step: step})
	}
	s.Forget(regexp.MustCompile("^drain/").MatchString)
	if s.Done("drain/1/peek") || !s.Done("latency/10/1/polling") {
		t.Errorf("got %+v", s.Run().Results)
	}
}

func TestARunIsNotMixedFromTwoVersions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	add(t, begun(t, dir, false, environment("15.1")), result.Result{Step: "drain/1/peek"})
	s, err := OpenStore(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Begin(environment("16.2")); err == nil || !strings.Contains(err.Error(), "15.1") {
		t.Errorf("got %v", err)
	}
}

func TestAnEarlierRunIsSetAside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	add(t, begun(t, dir, false, environment("15.1")), result.Result{Step: "drain/1/peek"})
	if s := begun(t, dir, false, environment("15.1")); s.Done("drain/1/peek") {
		t.Error("a new run has results")
	}
	if _, err := os.Stat(filepath.Join(dir, "results-20260102T030405Z.jsonl")); err != nil {
		t.Error(err)
	}
}
