package main

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/reissue"
)

// newBackfillStack has rows in the table before there is a slot.
func newBackfillStack(t *testing.T, payloads ...string) *stack {
	t.Helper()
	s := newStack(t, "")
	for _, p := range payloads {
		s.insert(t, p)
	}
	s.db.Exec(t, "SELECT pg_drop_replication_slot('"+s.db.Slot+"'); DELETE FROM postrider.checkpoint")
	setupSteps(t, "--config", s.path)
	return s
}

func (s *stack) backfill(t *testing.T, args ...string) result {
	t.Helper()
	return runBinary(t, nil, append(append([]string{"backfill"}, args...), "--config", s.path)...)
}

// backfilled is backfill with --json, decoded.
func backfilled[T any](t *testing.T, s *stack, code int, args ...string) (v T) {
	t.Helper()
	r := s.backfill(t, append(args, "--json")...)
	r.expect(t, code)
	if err := json.Unmarshal([]byte(r.out), &v); err != nil {
		t.Fatalf("%v in %s", err, r.out)
	}
	return v
}

// narrow: what is for people fits 100 columns.
func (r result) narrow(t *testing.T) {
	t.Helper()
	for line := range strings.Lines(r.out) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 100 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// The way from a table with rows to a running relay, as an operator sees it.
func TestBackfillOnTheBinary(t *testing.T) {
	t.Parallel()
	s := newBackfillStack(t, "'1'", "'2'", "'3'")
	dry := s.backfill(t, "--dry-run")
	dry.expect(t, exitDone)
	dry.narrow(t)
	for _, text := range []string{"would publish", "3 events from before it", "EVENTS", "3       events", "OrderPlaced"} {
		if !strings.Contains(dry.out, text) {
			t.Errorf("the dry run does not show %q:\n%s", text, dry.out)
		}
	}
	if n := scalar(t, s.db, "SELECT count(*)::text FROM postrider.task"); n != "0" {
		t.Errorf("a dry run made %s tasks", n)
	}
	done := s.backfill(t)
	done.expect(t, exitDone, "publishing 3 events, ordered by")
	done.narrow(t)
	if !strings.Contains(done.out, "published  3 events now, 3 of 3 in all") {
		t.Errorf("it says:\n%s", done.out)
	}
	for _, r := range s.broker.ReadAll(t, "events") {
		if mark, _ := r.Header(reissue.BackfilledHeader); string(mark) != "1" {
			t.Errorf("mark %q", mark)
		}
	}
	s.backfill(t).expect(t, 2, "did it", "Try: nothing, or postrider replay")
	s.insert(t, "'4'")
	s.drained(t)
	if n := len(s.broker.ReadAll(t, "events")); n != 4 {
		t.Errorf("%d records, want 4", n)
	}
	s.backfill(t).expect(t, 5, "published 1 events already", "Try: postrider replay")
}

// Refused, then cancelled: each with its exit code, the list, and what to try.
func TestBackfillRefusedOnTheBinary(t *testing.T) {
	t.Parallel()
	s := newBackfillStack(t, "'1'", "NULL", "'3'")
	r := s.backfill(t)
	r.expect(t, 6, "2 of 3 events could not be published", "Try: heal the cause and postrider backfill --resume")
	if !strings.Contains(r.out, "null_payload") || !strings.Contains(r.out, "withheld") {
		t.Errorf("it lists:\n%s", r.out)
	}
	runBinary(t, nil, "run", "--config", s.path).expect(t, 5, "backfill 1 is not ended: it is failed, 3 of 3 events are done", "Try: postrider backfill --resume, or postrider backfill --cancel")
	task := backfilled[reissue.Task](t, s, exitDone, "--cancel", "--reason", "wrong table")
	if task.State != reissue.Cancelled || task.Refused != 2 {
		t.Errorf("%+v", task)
	}
	if got := scalar(t, s.db, `SELECT detail ->> 'reason' FROM postrider.audit WHERE action = 'backfill.cancel'`); got != "wrong table" {
		t.Errorf("audit: %s", got)
	}
	s.backfill(t, "--cancel").expect(t, 2, "none that has not ended")
	s.drained(t)
}

func TestBackfillUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--dry-run", "--resume"}, {"--resume", "--cancel"}, {"--rate", "-1"}, {"--on-refusal", "drop"}, {"--reason", "none"}, {"now"},
	} {
		runBinary(t, nil, append([]string{"backfill"}, args...)...).expect(t, 2, "Try: postrider backfill --help")
	}
}

// The fields of --json are in the manual, and the manual has no others.
func TestBackfillJSONIsDocumented(t *testing.T) {
	t.Parallel()
	s := newBackfillStack(t, "NULL")
	fields := map[string]bool{}
	var collect func(v any)
	collect = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for name, inner := range v {
				fields[name] = true
				if name != "unended" {
					collect(inner)
				}
			}
		case []any:
			for _, inner := range v {
				collect(inner)
			}
		}
	}
	collect(backfilled[map[string]any](t, s, exitDone, "--dry-run"))
	collect(backfilled[map[string]any](t, s, 6))
	fields["warning"] = true // of a situation that is rare
	manual, err := os.ReadFile("../../docs/backfill.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(manual), "## `--json`")
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !strings.Contains(section, "`"+name+"`") {
			t.Errorf("docs/backfill.md does not explain %q", name)
		}
	}
	for i, name := range strings.Split(section, "`") {
		if i%2 == 1 && !fields[name] && !slices.Contains([]string{"done", "failed", "cancelled", "postrider.task", "--cancel --json"}, name) {
			t.Errorf("docs/backfill.md explains %q, which is no field", name)
		}
	}
}
