package result

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, File), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestReadTakesTheLastLineOfAStepAndDropsWhatWasCutOff(t *testing.T) {
	t.Parallel()
	run, err := Read(write(t, `{"machine":"m","cores":2}
{"step":"drain/1/peek","error":"broken"}
{"step":"drain/1/postrider","events":7}
{"step":"drain/1/peek","events":5}
{"step":"drain/2/pe`))
	if err != nil {
		t.Fatal(err)
	}
	if run.Environment.Machine != "m" || run.Environment.Cores != 2 {
		t.Errorf("environment: %+v", run.Environment)
	}
	if len(run.Results) != 2 {
		t.Fatalf("%d results, want 2: %+v", len(run.Results), run.Results)
	}
	if r := run.Results[0]; r.Step != "drain/1/peek" || r.Events != 5 || r.Error != "" {
		t.Errorf("the repeated step did not win: %+v", r)
	}
}

func TestReadTellsWhereALineIsBroken(t *testing.T) {
	t.Parallel()
	_, err := Read(write(t, "{}\n{\"step\":\"a\"}\nnonsense\n"))
	if err == nil || !strings.Contains(err.Error(), File+":3:") {
		t.Errorf("got %v, want the third line named", err)
	}
	if _, err := Read(write(t, "")); err == nil {
		t.Error("an empty file was taken for a run")
	}
	if _, err := Read(t.TempDir()); err == nil {
		t.Error("a missing file was taken for a run")
	}
}
