package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/bench/result"
)

var update = flag.Bool("update", false, "write testdata/golden anew")

// golden is a run with something of everything: a step that failed, one whose events were wrong, one that was not checked.
func golden() result.Run {
	run := synthetic()
	for i := range run.Results {
		switch r := &run.Results[i]; r.Step {
		case "drain/2/polling":
			r.Check.Missing, r.Check.Duplicates = 3, 12
		case "drain/3/debezium":
			r.Error, r.Seconds, r.Events = "Connect did not start:\n  port | 8083 in use", 0, 0
		case "drain/3/watermill":
			r.Check.Checked = false
		case "drain/1/postrider-tls":
			r.Check.Duplicates = 1
		}
	}
	return run
}

// written is what Write makes of a run: path below docs → content.
func written(t *testing.T, run result.Run) map[string]string {
	t.Helper()
	docs := t.TempDir()
	if err := Write(run, docs); err != nil {
		t.Fatal(err)
	}
	return files(t, docs)
}

func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		out[filepath.ToSlash(name)] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestGolden(t *testing.T) {
	const dir = "testdata/golden"
	if *update {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := Write(golden(), dir); err != nil {
			t.Fatal(err)
		}
	}
	got, want := written(t, golden()), files(t, dir)
	if len(got) != len(want) {
		t.Errorf("%d files, want %d", len(got), len(want))
	}
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%s differs from %s; look, then run the test with -update", name, dir)
		}
	}
}

func TestChartsAreSmallAccessibleAndWithoutScript(t *testing.T) {
	t.Parallel()
	for name, text := range written(t, golden()) {
		if !strings.HasSuffix(name, ".svg") {
			continue
		}
		if len(text) >= 40<<10 {
			t.Errorf("%s has %d bytes, want less than 40 KiB", name, len(text))
		}
		elements := wellFormed(t, name, text)
		for _, needed := range []string{"title", "desc", "text"} {
			if !elements[needed] {
				t.Errorf("%s has no <%s>", name, needed)
			}
		}
		for _, bad := range []string{"script", "image", "foreignObject", "a"} {
			if elements[bad] {
				t.Errorf("%s has <%s>", name, bad)
			}
		}
		for _, bad := range []string{"NaN", "Inf", "onload", "href"} {
			if strings.Contains(text, bad) {
				t.Errorf("%s has %q in it", name, bad)
			}
		}
		if !strings.Contains(text, "prefers-color-scheme:dark") {
			t.Errorf("%s has no dark theme", name)
		}
	}
}

func wellFormed(t *testing.T, name, text string) map[string]bool {
	t.Helper()
	elements := map[string]bool{}
	for d := xml.NewDecoder(bytes.NewReader([]byte(text))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return elements
		}
		if err != nil {
			t.Fatalf("%s is not well-formed: %v", name, err)
		}
		if start, ok := token.(xml.StartElement); ok {
			elements[start.Name.Local] = true
		}
	}
}

// TestNothingIsFilledIn: without a step, its section says that it is missing, its chart is gone, and no target is judged.
func TestNothingIsFilledIn(t *testing.T) {
	t.Parallel()
	empty := written(t, result.Run{})
	page := empty["benchmarks.md"]
	if len(empty) != 1 {
		t.Errorf("a run without a step has %d files, want the page alone", len(empty))
	}
	for _, what := range []string{"the drain", "latency", "scaling", "idle CPU", "an outage of the broker", "a huge transaction"} {
		if !strings.Contains(page, "*Missing: "+what+" was not measured in this run.*") {
			t.Errorf("the page does not say that %s is missing", what)
		}
	}
	if strings.Contains(page, "reached |") || strings.Contains(page, "**missed**") || strings.Contains(page, ".svg") {
		t.Errorf("the page judges or shows what was not measured:\n%s", page)
	}
}

// TestChartsOfAnEarlierRunAreRemoved: a chart that this run has no figures for would show another run's.
func TestChartsOfAnEarlierRunAreRemoved(t *testing.T) {
	t.Parallel()
	docs := t.TempDir()
	if err := Write(synthetic(), docs); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(docs, Folder, "notes.txt")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(without(synthetic(), kind(result.KindOutage)), docs); err != nil {
		t.Fatal(err)
	}
	got := files(t, docs)
	if _, there := got["benchmarks/outage.svg"]; there {
		t.Error("the outage's chart of the earlier run is still there")
	}
	if _, there := got["benchmarks/notes.txt"]; !there {
		t.Error("a file that is not the report's was removed")
	}
	if _, there := got["benchmarks/drain.svg"]; !there {
		t.Error("the drain's chart is gone")
	}
}

// TestWrongResultsDoNotCountAsSpeed: a step with wrong events counts in no figure, and the page says so at the top.
func TestWrongResultsDoNotCountAsSpeed(t *testing.T) {
	t.Parallel()
	for what, spoil := range map[string]func(*result.Result){
		"missing":      func(r *result.Result) { r.Check.Missing = 1 },
		"out of order": func(r *result.Result) { r.Check.OutOfOrder = 1 },
		"wrong bytes":  func(r *result.Result) { r.Check.WrongBytes = 1 },
		"not checked":  func(r *result.Result) { r.Check.Checked = false },
		"failed":       func(r *result.Result) { r.Error = "broken" },
	} {
		v := view{change(synthetic(), result.KindDrain, postrider, spoil)}
		if n := speed.over(v.counted(kind(result.KindDrain), of(postrider))).n; n != 0 {
			t.Errorf("%s: %d rounds count", what, n)
		}
		page := string(page(v, nil))
		if !strings.Contains(page, "**Speed: missing.**") {
			t.Errorf("%s: the summary has a speed", what)
		}
		if !strings.Contains(page, "`drain/2/postrider`: **") {
			t.Errorf("%s: the notes do not name the step", what)
		}
	}
	duplicates := view{change(synthetic(), result.KindDrain, postrider, func(r *result.Result) { r.Check.Duplicates = 5 })}
	if n := speed.over(duplicates.counted(kind(result.KindDrain), of(postrider))).n; n != 3 {
		t.Errorf("duplicates are allowed, but only %d of 3 rounds count", n)
	}
}

func TestWrongStepsAreNamedInTheSummary(t *testing.T) {
	t.Parallel()
	page := string(page(view{golden()}, nil))
	if !strings.Contains(page, "**Correctness: wrong in 1 of ") || !strings.Contains(page, "Polling relay (1)") {
		t.Error("the summary does not name the contender whose events were wrong")
	}
}

// TestAPeerThatIsBetterIsNamed, with the metric and both figures; where none is, the page says none.
func TestAPeerThatIsBetterIsNamed(t *testing.T) {
	t.Parallel()
	run := synthetic()
	for i := range run.Results {
		if r := &run.Results[i]; r.Contender == polling || r.Contender == pollingTuned {
			r.PeakRSS, r.Startup = 25*mib, 0.3
		}
	}
	run = without(run, func(r result.Result) bool { return reference(r.Contender) })
	if lost := (view{run}).beaten(peer); len(lost) != 0 {
		t.Fatalf("no peer is better, but: %q", lost)
	}
	if page := string(page(view{run}, nil)); !strings.Contains(page, "None: in no metric") || !strings.Contains(page, "in no metric of this run.") {
		t.Error("the page does not say that no peer is better")
	}
	for what, improve := range map[string]func(*result.Result){
		"**Drain**, events/s: Polling relay": func(r *result.Result) {
			if r.Kind == result.KindDrain {
				r.Seconds /= 5
			}
		},
		"**Drain**, peak memory: Polling relay 10 MiB, Postrider 19 MiB (17.9–20.3).": func(r *result.Result) { r.PeakRSS = 10 * mib },
		"**Commit → consumer at 10/s**, p99: Polling relay 0.1 ms": func(r *result.Result) {
			if r.Latency != nil && r.Params.RatePerSec == 10 {
				r.Latency.P99 = 0.1
			}
		},
	} {
		better := without(synthetic(), func(result.Result) bool { return false })
		for _, k := range []result.Kind{result.KindDrain, result.KindLatency} {
			better = change(better, k, polling, improve)
		}
		page := string(page(view{better}, nil))
		if !strings.Contains(page, "- "+what) || !strings.Contains(page, "**A peer is better in ") {
			t.Errorf("the page does not say %q:\n%s", what, strings.Join((view{better}).beaten(peer), "\n"))
		}
	}
}

// TestForeignTextDoesNotBreakTheDrawing: names and notes come from the run's file.
func TestForeignTextDoesNotBreakTheDrawing(t *testing.T) {
	t.Parallel()
	run := synthetic()
	for i := range run.Results {
		if r := &run.Results[i]; r.Contender == polling {
			r.Contender, r.Note = "<b>&\"new\"", "one | two\nthree /tmp/x"
		}
	}
	got := written(t, run)
	for name, text := range got {
		if strings.HasSuffix(name, ".svg") {
			wellFormed(t, name, text)
		}
	}
	if !strings.Contains(got["benchmarks/drain.svg"], "&lt;b&gt;") || !strings.Contains(got["benchmarks.md"], ": one | two … (the rest is in the run's results)\n") {
		t.Error("the name or the note is not there as it should be")
	}
}

func TestQuickRunIsSaid(t *testing.T) {
	t.Parallel()
	run := synthetic()
	if strings.Contains(string(page(view{run}, nil)), "quick run") {
		t.Error("a whole run is called a quick one")
	}
	run.Environment.Quick = true
	if !strings.Contains(string(page(view{run}, nil)), "**This was a quick run**") {
		t.Error("the page does not say that the run was a quick one")
	}
}
