package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/recovery"
	"github.com/postrider/postrider/internal/reissue"
)

func (s *stack) recover(t *testing.T, args ...string) result {
	t.Helper()
	return runBinary(t, nil, append(append([]string{"recover"}, args...), "--config", s.path)...)
}

// shows wants texts in what is for people.
func (r result) shows(t *testing.T, texts ...string) {
	t.Helper()
	narrow(t, r.out)
	said := strings.Join(strings.Fields(r.out), " ")
	for _, text := range texts {
		if !strings.Contains(said, text) {
			t.Errorf("it does not show %q:\n%s", text, r.out)
		}
	}
}

// From a slot that is gone to a relay that runs, as an operator sees it (case C32, C41).
func TestRecoverOnTheBinary(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.insert(t, "'1'")
	s.drained(t)
	s.recover(t).shows(t, "case healthy", "Nothing to recover: postrider run starts.")
	if done := s.recover(t, "--yes"); done.code != exitDone {
		t.Errorf("nothing to recover: exit code %d", done.code)
	}
	s.insert(t, "'2'")
	s.insert(t, "'3'")
	s.db.Exec(t, "SELECT pg_drop_replication_slot('"+s.db.Slot+"')")

	dry := s.recover(t)
	dry.expect(t, exitDone)
	dry.shows(t, s.db.Slot+" does not exist", "case slot_missing", "a new one is made under the same name",
		"to publish", "OrderPlaced", "What cannot be known", "Nothing was changed. postrider recover --yes does it.")
	for sql, want := range map[string]string{
		"SELECT count(*)::text FROM postrider.task": "0", "SELECT count(*)::text FROM postrider.audit WHERE action LIKE 'recover%'": "0",
		"SELECT count(*)::text FROM pg_replication_slots WHERE database = current_database()": "0",
	} {
		if got := scalar(t, s.db, sql); got != want {
			t.Errorf("after a dry run %s gives %s", sql, got)
		}
	}

	done := s.recover(t, "--yes", "--reason", "a disk full of WAL")
	done.expect(t, exitDone)
	done.shows(t, "Recovered (task 1): 2 published. The position is 0/", "postrider run goes on from there.")
	if got := scalar(t, s.db, `SELECT string_agg(action, ' ' ORDER BY id) FROM postrider.audit WHERE action LIKE 'recover%'`); got != "recover.begin recover.list recover.compare recover.done" {
		t.Errorf("audit: %s", got)
	}
	if got := scalar(t, s.db, `SELECT concat_ws(' ', state, reason, total, done, refused) FROM postrider.task`); got != "done a disk full of WAL 2 2 0" {
		t.Errorf("task: %s", got)
	}
	for _, r := range s.broker.ReadAll(t, "events")[1:] {
		if mark, _ := r.Header(reissue.RecoveredHeader); string(mark) != "1" {
			t.Errorf("mark %q", mark)
		}
	}
	s.insert(t, "'4'")
	s.drained(t)
	if n := len(s.broker.ReadAll(t, "events")); n != 4 {
		t.Errorf("%d records, want 4", n)
	}
	for _, args := range [][]string{{"--resume"}, {"--abandon"}} {
		s.recover(t, args...).expect(t, operr.Config.ExitCode(), "none is open", "Try: postrider recover")
	}
}

// A recovery that stops at a refused event can be abandoned; what it was to heal is as it was.
func TestRecoverAbandonedOnTheBinary(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.insert(t, "'1'")
	s.drained(t)
	s.insert(t, "NULL")
	s.db.Exec(t, "SELECT pg_drop_replication_slot('"+s.db.Slot+"')")
	s.recover(t, "--yes").expect(t, operr.Halted.ExitCode(), "null_payload", "on_refusal: halt", "Try: heal the cause")
	s.recover(t).shows(t, "is open: published", "postrider recover --resume goes on with it, --abandon gives it up.")
	s.recover(t, "--yes").expect(t, operr.Config.ExitCode(), "has not ended", "Try: postrider recover --resume, or postrider recover --abandon")
	s.recover(t, "--abandon", "--reason", "begun too early").expect(t, exitDone)
	if got := scalar(t, s.db, `SELECT detail ->> 'reason' FROM postrider.audit WHERE action = 'recover.abandon'`); got != "begun too early" {
		t.Errorf("audit: %s", got)
	}
	runBinary(t, nil, "run", "--config", s.path).expect(t, operr.Slot.ExitCode(), "Try: postrider recover")
}

func TestRecoverUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--yes", "--resume"},
		{"--resume", "--abandon"},
		{"--resume", "--since", "1h"},
		{"--resume", "--new-slot"},
		{"--rate", "-1"},
		{"--conflicts", "drop"},
		{"--expired", "perhaps"},
		{"--since", "yesterday"},
		{"--scan-from", "x"},
		{"--lock-timeout", "0s"},
		{"now"},
	} {
		runBinary(t, nil, append([]string{"recover"}, args...)...).expect(t, operr.Config.ExitCode(), "Try: postrider recover --help")
	}
	path := writeConfig(t, unreachable)
	r := runBinary(t, secretEnv(), "recover", "--config", path)
	r.expect(t, operr.Postgres.ExitCode(), "Try: ")
	if strings.Contains(r.out+r.err, pgSecret) {
		t.Errorf("a secret is shown: %s", r.err)
	}
	runBinary(t, secretEnv(), "recover", "--config", path, "--topic-only", filepath.Join(t.TempDir(), "no", "such", "folder")).expect(t, operr.Postgres.ExitCode())
}

// --json has the documented fields and no others, and --topic-only writes JSON lines.
func TestRecoverJSON(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.insert(t, "'1'")
	s.insert(t, "'2'")
	s.drained(t)
	// An event that only the topic has.
	s.db.Exec(t, "DELETE FROM outbox WHERE payload = '1'; SELECT pg_drop_replication_slot('"+s.db.Slot+"')")
	only := filepath.Join(t.TempDir(), "only.jsonl")
	r := s.recover(t, "--json", "--topic-only", only)
	r.expect(t, exitDone)
	dec := json.NewDecoder(strings.NewReader(r.out))
	dec.DisallowUnknownFields()
	var report recovery.Report
	if err := dec.Decode(&report); err != nil || report.Comparison == nil || report.Comparison.TopicOnly != 1 || report.Evidence.Stored == nil {
		t.Fatalf("%v in %s", err, r.out)
	}
	text, err := os.ReadFile(only)
	if err != nil {
		t.Fatal(err)
	}
	var line map[string]any
	if err := json.Unmarshal(text, &line); err != nil || line["key"] != "42" || line["topic"] != "events" || line["event_id"] == "" || line["offset"] == nil {
		t.Errorf("%v in %s", err, text)
	}
	if fields := reflect.TypeOf(topicOnlyRecord{}).NumField(); len(line) != fields {
		t.Errorf("%d fields, want %d: %s", len(line), fields, text)
	}
}

// --rate 0 with --resume lifts the limit that the recovery was begun with; without it that one holds.
func TestResumedRate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		given bool
		rate  float64
		want  float64
	}{{false, 0, 0}, {true, 0, math.Inf(1)}, {true, 5, 5}} {
		o := recoverOptions{resume: true, rateGiven: c.given}
		o.PerSecond, o.LockTimeout = c.rate, defaultLockTimeout
		if err := o.validate(); err != nil || o.PerSecond != c.want {
			t.Errorf("%+v: %v, %v", c, o.PerSecond, err)
		}
	}
}
