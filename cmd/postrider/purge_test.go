package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/outbox"
)

// published runs the relay over what there is and stores a snapshot that proves it: other
// tests have transactions open on the server.
func (s *stack) published(t *testing.T) {
	t.Helper()
	runBinary(t, nil, "run", "--until-lsn", "now", "--config", s.path).expect(t, exitDone)
	s.db.Exec(t, `UPDATE postrider.checkpoint SET snapshot = (x || ':' || x || ':')::pg_snapshot FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text AS x) n`)
}

func (s *stack) purge(t *testing.T, args ...string) (result, outbox.PurgeResult) {
	t.Helper()
	r := runBinary(t, nil, append(append([]string{"purge", "--json"}, args...), "--config", s.path)...)
	var p outbox.PurgeResult
	if err := json.Unmarshal([]byte(r.out), &p); err != nil && r.code == exitDone {
		t.Fatalf("%v in %s", err, r.out)
	}
	return r, p
}

// purge on the real binary: the dry run counts and changes nothing, a run deletes what is
// confirmed and old, and both say so; a retention must be given or configured.
func TestPurgeCommand(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	for n := range 3 {
		s.insert(t, fmt.Sprintf(`'{"n": %d}'`, n))
	}
	s.published(t)
	s.db.Exec(t, `UPDATE outbox SET occurred_at = now() - interval '8 days' WHERE payload->>'n' = '0'`) // a new version: not proved
	s.insert(t, `'{"n": 3}'`)
	runBinary(t, nil, "purge", "--config", s.path).expect(t, operr.Config.ExitCode(), "no retention is configured", "--older-than")
	r, p := s.purge(t, "--older-than", "0s", "--dry-run")
	r.expect(t, exitDone)
	if got := p.Tables[0]; !p.DryRun || got.Deleted != 2 || got.Kept["not_confirmed"] != 2 || got.Table != "public.outbox" {
		t.Errorf("dry run: %+v", p)
	}
	if n := scalar(t, s.db, "SELECT count(*)::text FROM outbox"); n != "4" {
		t.Errorf("%s rows after a dry run", n)
	}
	r = runBinary(t, nil, "purge", "--older-than", "1h", "--dry-run", "--config", s.path)
	r.expect(t, exitDone)
	for _, text := range []string{"public.outbox: 0 rows would be deleted, from before ", "(column occurred_at)", "2 stay: not old enough", "2 stay: not proved to be published"} {
		if !strings.Contains(r.out, text) {
			t.Errorf("it lacks %q:\n%s", text, r.out)
		}
	}
	for line := range strings.Lines(r.out) {
		if len(line) > 101 {
			t.Errorf("%d columns: %s", len(line)-1, line)
		}
	}
	rewrite(t, s.path, "admin:", "purge: {retention: 0s, batch: 1, pause: 1ms}\nadmin:")
	r = runBinary(t, nil, "purge", "--config", s.path)
	r.expect(t, exitDone)
	if !strings.HasPrefix(r.out, "public.outbox: 2 rows deleted, of any age") {
		t.Errorf("it says:\n%s", r.out)
	}
	if n := scalar(t, s.db, "SELECT count(*)::text FROM outbox"); n != "2" {
		t.Errorf("%s rows are left", n)
	}
	if got := scalar(t, s.db, "SELECT detail->>'rows' FROM postrider.audit WHERE action = 'purge'"); got != "2" {
		t.Errorf("audit: %s", got)
	}
	runBinary(t, nil, "purge", "--table", "public.other", "--config", s.path).expect(t, operr.Config.ExitCode(), "no source", "public.outbox")
	runBinary(t, nil, "purge", "--partitions", "--config", s.path).expect(t, operr.Config.ExitCode(), "not partitioned", "without --partitions")
	for _, bad := range [][]string{{"--older-than", "-1s"}, {"--batch", "10001"}, {"--pause", "2m"}} {
		runBinary(t, nil, append([]string{"purge", "--config", s.path}, bad...)...).expect(t, operr.Config.ExitCode(), bad[0])
	}
	s.db.Exec(t, "DELETE FROM postrider.checkpoint")
	runBinary(t, nil, "purge", "--config", s.path).expect(t, operr.Slot.ExitCode(), "checkpoint", "Try: ")
}

// Interrupted, purge ends behind the batch at hand, says what it did, and its code is 7.
func TestPurgeInterrupted(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	s.db.Exec(t, `INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload) SELECT gen_random_uuid(), 'order', i::text, 'X', '{}' FROM generate_series(1, 20) i`)
	s.published(t)
	p := startCommand(t, "purge", "--older-than", "0s", "--batch", "1", "--pause", "10s", "--config", s.path)
	testkit.Eventually(t, patience, func() error {
		if n := scalar(t, s.db, "SELECT count(*)::text FROM outbox"); n != "19" {
			return fmt.Errorf("%s rows", n)
		}
		return nil
	})
	r := p.interrupt(t, syscall.SIGINT)
	r.expect(t, operr.DrainIncomplete.ExitCode(), "ended early", "Try: ")
	if !strings.Contains(r.out, "public.outbox: 1 rows deleted") {
		t.Errorf("it says:\n%s", r.out)
	}
	if got := scalar(t, s.db, "SELECT detail->>'rows' FROM postrider.audit WHERE action = 'purge'"); got != "1" {
		t.Errorf("audit: %s", got)
	}
}
