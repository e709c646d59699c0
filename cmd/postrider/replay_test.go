package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/migrations"
)

// insertOrders commits n events, one a transaction, over five keys and two types.
func (s *stack) insertOrders(t *testing.T, n int) {
	t.Helper()
	s.db.Exec(t, fmt.Sprintf(`DO $$ BEGIN FOR n IN 1..%d LOOP
		INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload)
		VALUES (gen_random_uuid(), 'order', 'k' || n %% 5, CASE n %% 2 WHEN 0 THEN 'OrderPlaced' ELSE 'OrderPaid' END, jsonb_build_object('n', n));
		COMMIT; END LOOP; END $$`, n))
}

type replayPreview struct {
	Events  int
	LeftOut []struct {
		Why    string
		Events int
	} `json:"left_out"`
	Missing       []string
	MissingTotal  int  `json:"missing_total"`
	NeedsApproval bool `json:"needs_approval"`
	Groups        []struct {
		Topic     string
		EventType string `json:"event_type"`
		Events    int
	}
}

func (s *stack) replay(t *testing.T, args ...string) result {
	t.Helper()
	return runBinary(t, nil, append(append([]string{"replay"}, args...), "--config", s.path)...)
}

func (s *stack) preview(t *testing.T, args ...string) replayPreview {
	t.Helper()
	p, err := s.tryPreview(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (s *stack) tryPreview(t *testing.T, args ...string) (p replayPreview, err error) {
	t.Helper()
	r := s.replay(t, append(args, "--json")...)
	var printed struct{ Preview replayPreview }
	if err = json.Unmarshal([]byte(r.out), &printed); err != nil {
		err = fmt.Errorf("%w in %s\n%s", err, r.out, r.err)
	}
	return printed.Preview, err
}

// awaitReplayable waits until the relay's checkpoint covers n events.
func (s *stack) awaitReplayable(t *testing.T, n int) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		p, err := s.tryPreview(t, "--all")
		if err == nil && p.Events != n {
			err = fmt.Errorf("%d events are covered, want %d: %+v", p.Events, n, p)
		}
		return err
	})
}

// copies splits a topic's records into the first one of each event and the marked ones.
func copies(t *testing.T, records []testkit.Record) (first map[string]testkit.Record, marked []testkit.Record) {
	t.Helper()
	first = map[string]testkit.Record{}
	for _, r := range records {
		id, _ := r.Header("id")
		if _, is := r.Header("postrider-replayed"); is {
			if _, before := first[string(id)]; !before {
				t.Errorf("the copy of %s comes before the event itself", id)
			}
			marked = append(marked, r)
			continue
		}
		if _, twice := first[string(id)]; twice {
			t.Errorf("%s is there twice without a mark", id)
		}
		first[string(id)] = r
	}
	return first, marked
}

// number is n of a payload.
func number(t *testing.T, r testkit.Record) (n int) {
	t.Helper()
	var payload struct{ N int }
	if err := json.Unmarshal(r.Value, &payload); err != nil {
		t.Fatal(err)
	}
	return payload.N
}

// case C41: a replay shows what it would do and does nothing; then it publishes just that, with the same ids, keys, bytes
// and headers and one header more, in order per key; a second run is another replay; an unknown id is an error.
func TestReplay(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	p := startRun(t, s.path)
	p.ready()
	s.insertOrders(t, 60)
	s.awaitReplayable(t, 60)
	before := len(s.broker.ReadAll(t, "events"))

	s.replay(t).expect(t, operr.Config.ExitCode(), "--all")
	s.replay(t, "--all", "--type", "x").expect(t, operr.Config.ExitCode(), "--all")
	s.replay(t, "--all", "--yes").expect(t, operr.Config.ExitCode(), "--reason")
	s.replay(t, "--since", "yesterday", "--resume", "1", "--rate", "-1").expect(t, operr.Config.ExitCode(), "yesterday", "--resume", "--rate")
	dry := s.replay(t, "--type", "OrderPaid", "--since", "1h", "--aggregate-type", "order")
	dry.expect(t, exitDone)
	if !strings.Contains(dry.out, "would be published again  30 events") || !strings.Contains(dry.out, "events  order           OrderPaid   30") {
		t.Errorf("preview:\n%s", dry.out)
	}
	for _, line := range strings.Split(dry.out, "\n") {
		if len(line) > 100 {
			t.Errorf("a line of %d columns: %s", len(line), line)
		}
	}
	if len(s.broker.ReadAll(t, "events")) != before || scalar(t, s.db, `SELECT count(*)::text FROM postrider.task`) != "0" {
		t.Error("a dry run has changed something")
	}

	id := scalar(t, s.db, `SELECT event_id::text FROM outbox WHERE payload ->> 'n' = '17'`)
	unknown := "00000000-0000-0000-0000-000000000000"
	if p := s.preview(t, "--event-id", id, "--event-id", unknown, "--event-id", "no uuid"); p.Events != 1 || p.MissingTotal != 2 || !slices.Contains(p.Missing, unknown) {
		t.Errorf("%+v", p)
	}
	s.replay(t, "--event-id", unknown, "--yes", "--reason", "a test").expect(t, operr.Config.ExitCode(), unknown)

	r := s.replay(t, "--type", "OrderPaid", "--yes", "--reason", "billing lost them", "--rate", "0")
	r.expect(t, exitDone)
	if !strings.Contains(r.out, "is done: 30 of 30 events published, 0 not") {
		t.Errorf("%s", r.out)
	}
	first, marked := copies(t, s.broker.ReadAll(t, "events"))
	if len(first) != 60 || len(marked) != 30 {
		t.Fatalf("%d events, %d copies", len(first), len(marked))
	}
	task := scalar(t, s.db, `SELECT id::text FROM postrider.task`)
	last := map[string]int{}
	for _, c := range marked {
		eventID, _ := c.Header("id")
		event := first[string(eventID)]
		if string(c.Key) != string(event.Key) || string(c.Value) != string(event.Value) || len(c.Headers) != len(event.Headers)+1 || c.Partition != event.Partition {
			t.Errorf("copy %+v of %+v", c, event)
			continue
		}
		for i, h := range event.Headers {
			if c.Headers[i].Key != h.Key || string(c.Headers[i].Value) != string(h.Value) {
				t.Errorf("header %s of the copy differs", h.Key)
			}
		}
		if mark := c.Headers[len(event.Headers)]; mark.Key != "postrider-replayed" || string(mark.Value) != task {
			t.Errorf("mark %s=%s, want %s", mark.Key, mark.Value, task)
		}
		if n := number(t, c); n < last[string(c.Key)] {
			t.Errorf("%d behind %d", n, last[string(c.Key)])
		} else {
			last[string(c.Key)] = n
		}
	}

	ids := filepath.Join(t.TempDir(), "ids")
	if err := os.WriteFile(ids, []byte(id+"\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.replay(t, "--event-id", "@"+ids, "--yes", "--reason", "once more").expect(t, exitDone)
	if _, marked := copies(t, s.broker.ReadAll(t, "events")); len(marked) != 31 {
		t.Errorf("%d copies", len(marked))
	}
	s.replay(t, "--resume", task).expect(t, operr.Config.ExitCode(), "it is done")
	if r := s.replay(t, "list", "--all"); strings.Count(r.out, "done") != 2 || !strings.Contains(r.out, "billing lost them") {
		t.Errorf("list: %s", r.out)
	}
	if n := scalar(t, s.db, `SELECT count(*)::text FROM postrider.task_item`); n != "0" {
		t.Errorf("%s items are left of replays that published all", n)
	}
	if got := scalar(t, s.db, `SELECT string_agg(action, ' ' ORDER BY id) FROM postrider.audit WHERE detail ->> 'task' = $1`, task); got !=
		"replay.plan replay.listed replay.begin replay.done" {
		t.Errorf("audit: %s", got)
	}
	p.signal(syscall.SIGTERM)
	p.end().expect(t, exitDone)
}

// What is not proved to be published is left out and said so: rows that the relay has not confirmed, rows from before the
// slot, parked and discarded events (rule 20). Order promise 2.
func TestReplayPublishesCopiesOnly(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	rewrite(t, s.path, "on_refusal: halt", "on_refusal: park_aggregate")
	s.poisoned("poison")
	p := startRun(t, s.path)
	p.ready()
	s.insertOrders(t, 10)
	s.insertKey(t, "held", `{"poison": 1}`)
	s.insertKey(t, "held", `{"n": 2}`)
	s.insertKey(t, "gone", `{"poison": 3}`)
	s.awaitStates(t, "parked parked parked")
	s.parked(t, "discard", "--aggregate", "gone", "--reason", "a test").expect(t, exitDone)
	s.awaitReplayable(t, 10)
	left := func(args ...string) string {
		p := s.preview(t, append([]string{"--all"}, args...)...)
		text := fmt.Sprint(p.Events)
		for _, l := range p.LeftOut {
			text += fmt.Sprintf(" %s %d", l.Why, l.Events)
		}
		return text
	}
	testkit.EventuallyTrue(t, patience, "all rows are covered", func() bool { return left() == "10 parked 3" })
	p.signal(syscall.SIGTERM)
	p.end().expect(t, exitDone)
	s.insertOrders(t, 4)

	if got := left(); got != "10 unconfirmed 4 parked 3" {
		t.Errorf("left out: %s", got)
	}
	s.replay(t, "--all", "--yes", "--reason", "a test").expect(t, exitDone, "4 events are left out")
	if first, marked := copies(t, s.broker.ReadAll(t, "events")); len(first) != 10 || len(marked) != 10 {
		t.Errorf("%d events, %d copies", len(first), len(marked))
	}

	// As if the slot had been made now, after all rows.
	s.db.Exec(t, `UPDATE postrider.checkpoint SET birth_snapshot = pg_current_snapshot()`)
	if got := left(); got != "0 unconfirmed 4 before_slot 13" {
		t.Errorf("left out: %s", got)
	}
	if got := left("--before-slot"); got != "10 unconfirmed 4 parked 3" {
		t.Errorf("left out: %s", got)
	}
	s.replay(t, "--all", "--yes", "--reason", "a test").expect(t, operr.Config.ExitCode(), "no event that may be published again")

	// A checkpoint that is of another server proves nothing.
	s.db.Exec(t, `UPDATE postrider.checkpoint SET system_id = '1'`)
	s.replay(t, "--all").expect(t, operr.Slot.ExitCode(), "system identifier")
	s.db.Exec(t, `UPDATE postrider.checkpoint SET snapshot = NULL`)
	s.replay(t, "--all").expect(t, operr.Slot.ExitCode(), "no snapshot")
}

// A large replay waits for a second person: not for the one who planned it, but for one who comes as another user of the
// database. A small one does not.
func TestReplayApproval(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	rewrite(t, s.path, "admin:", "replay: {approval_above: 20}\nadmin:")
	p := startRun(t, s.path)
	p.ready()
	s.insertOrders(t, 50)
	s.awaitReplayable(t, 50)
	if !s.preview(t, "--all").NeedsApproval || s.preview(t, "--aggregate", "k1").NeedsApproval {
		t.Error("the preview is wrong about the approval")
	}
	s.replay(t, "--all", "--yes", "--reason", "a test").expect(t, operr.DrainIncomplete.ExitCode(), "second person", "replay approve 1")
	s.replay(t, "--resume", "1").expect(t, operr.Config.ExitCode(), "second person")
	s.replay(t, "approve", "1").expect(t, operr.Config.ExitCode(), "second person")
	if r := s.replay(t, "list"); !strings.Contains(r.out, "needs approval") {
		t.Errorf("list: %s", r.out)
	}

	role := s.db.Slot + "_ben"
	s.db.Exec(t, `CREATE ROLE `+role+` LOGIN SUPERUSER PASSWORD 'p'`)
	t.Cleanup(func() { s.db.Exec(t, `DROP ROLE `+role) })
	ben := *s
	text, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	ben.path = writeConfig(t, strings.Replace(string(text), s.db.DSN, s.db.As(role, "p"), 1))
	ben.replay(t, "approve", "1").expect(t, exitDone)
	if r := ben.replay(t, "show", "1"); !strings.Contains(r.out, role) || !strings.Contains(r.out, "approved") {
		t.Errorf("show: %s", r.out)
	}
	if _, marked := copies(t, s.broker.ReadAll(t, "events")); len(marked) != 0 {
		t.Errorf("%d copies before anybody began", len(marked))
	}
	s.replay(t, "--resume", "1", "--rate", "0").expect(t, exitDone)
	if _, marked := copies(t, s.broker.ReadAll(t, "events")); len(marked) != 50 {
		t.Errorf("%d copies", len(marked))
	}

	s.replay(t, "--all", "--yes", "--reason", "a test").expect(t, operr.DrainIncomplete.ExitCode())
	s.replay(t, "cancel", "2", "--reason", "not needed").expect(t, exitDone)
	ben.replay(t, "approve", "2").expect(t, operr.Config.ExitCode(), "cancelled")
	s.replay(t, "--aggregate", "k1", "--yes", "--reason", "a small one").expect(t, exitDone)
}

// Ctrl-C, and kill -9: the replay goes on where it was, nothing is missing. After Ctrl-C nothing is repeated.
func TestReplayResumes(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	p := startRun(t, s.path)
	p.ready()
	const events = 300
	s.insertOrders(t, events)
	s.awaitReplayable(t, events)

	// begin starts a replay that would take a minute, and waits until some of it is saved.
	begin := func(task string, args ...string) *exec.Cmd {
		cmd := exec.Command(binary, append(append([]string{"replay"}, args...), "--rate", "5", "--config", s.path)...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, patience, func() error {
			if got := scalar(t, s.db, `SELECT coalesce(max(done), 0)::text FROM postrider.task WHERE id = $1 AND done < total`, task); got == "0" {
				return fmt.Errorf("nothing is done")
			}
			return nil
		})
		return cmd
	}
	cmd := begin("1", "--all", "--yes", "--reason", "a test")
	s.replay(t, "--resume", "1").expect(t, operr.Config.ExitCode(), "another process works on it")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != operr.DrainIncomplete.ExitCode() {
		t.Errorf("exit code %d", code)
	}
	done := scalar(t, s.db, `SELECT done::text FROM postrider.task`)
	if _, marked := copies(t, s.broker.ReadAll(t, "events")); fmt.Sprint(len(marked)) != done {
		t.Errorf("%d copies, %s are done", len(marked), done)
	}
	if r := s.replay(t, "list"); !strings.Contains(r.out, "interrupted") {
		t.Errorf("list: %s", r.out)
	}
	s.replay(t, "--resume", "1", "--rate", "0").expect(t, exitDone)
	if _, marked := copies(t, s.broker.ReadAll(t, "events")); len(marked) != events {
		t.Errorf("%d copies", len(marked))
	}

	cmd = begin("2", "--all", "--yes", "--reason", "a test")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	s.replay(t, "--resume", "2", "--rate", "0").expect(t, exitDone)
	_, marked := copies(t, s.broker.ReadAll(t, "events"))
	second := map[string]int{}
	for _, r := range marked {
		if mark, _ := r.Header("postrider-replayed"); string(mark) == "2" {
			id, _ := r.Header("id")
			second[string(id)]++
		}
	}
	if len(second) != events {
		t.Errorf("%d events in the second replay", len(second))
	}
	t.Logf("%d repeated after kill -9", len(marked)-2*events)

	// Who runs a replay that somebody cancels stops.
	cmd = begin("3", "--all", "--yes", "--reason", "a test")
	s.replay(t, "cancel", "3", "--reason", "enough").expect(t, exitDone)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != operr.DrainIncomplete.ExitCode() {
		t.Errorf("exit code %d of a cancelled replay", code)
	}
}

// An event that cannot be published is named, with code 6; what stands behind it in its key is withheld, all else goes; a row
// that is gone meanwhile is said to be.
func TestReplayNotesWhatItCannotPublish(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	rewrite(t, s.path, "admin:", "replay: {approval_above: 20}\nadmin:")
	p := startRun(t, s.path)
	p.ready()
	s.insertOrders(t, 30)
	s.awaitReplayable(t, 30)
	s.replay(t, "--all", "--yes", "--reason", "a test").expect(t, operr.DrainIncomplete.ExitCode())
	s.db.Exec(t, `UPDATE postrider.task SET approved_at = now(), state = 'approved'`) // the approval has a test of its own
	s.db.Exec(t, `DELETE FROM outbox WHERE payload ->> 'n' = '30'`)
	s.poisoned(`"n": 6}`)
	r := s.replay(t, "--resume", "1", "--json")
	r.expect(t, operr.Halted.ExitCode(), "6 of 30 events could not be published", "replay show 1")
	var shown struct {
		Published   int
		Unpublished []struct {
			N       int
			EventID string `json:"event_id"`
			Outcome string
		}
	}
	if err := json.Unmarshal([]byte(r.out), &shown); err != nil || shown.Published != 24 || len(shown.Unpublished) != 6 {
		t.Fatalf("%v in %s", err, r.out)
	}
	// Of key k1: 6 is refused, 11 to 26 stand behind it. And 30 is gone.
	for i, want := range []string{"refused: too_large", "withheld", "withheld", "withheld", "withheld", "gone"} {
		if !strings.HasPrefix(shown.Unpublished[i].Outcome, want) {
			t.Errorf("%d: %+v, want %s", i, shown.Unpublished[i], want)
		}
	}
	if r := s.replay(t, "show", "1", "--limit", "2"); strings.Count(r.out, "withheld") != 1 || !strings.Contains(r.out, "and 4 more") {
		t.Errorf("show: %s", r.out)
	}
}

// The running role's rights suffice, for ids that are listed too, in a database that gives nothing away.
func TestReplayWithTheLeastRights(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	p := startRun(t, s.path)
	p.ready()
	s.insertOrders(t, 10)
	s.insertKey(t, "parked", `{"n": 11}`)
	s.awaitReplayable(t, 11)
	s.db.Exec(t, `INSERT INTO postrider.parked (publisher, slot, system_id, timeline, commit_lsn, event_index, reason, event_id)
		SELECT publisher, slot, system_id, timeline, '0/1', 0, 'too_large', (SELECT event_id FROM outbox WHERE aggregate_id = 'parked') FROM postrider.checkpoint`)
	role := s.db.Slot + "_least"
	s.db.Exec(t, `REVOKE ALL ON DATABASE `+s.db.Name+` FROM PUBLIC`)
	s.db.Exec(t, migrations.GrantsSQL(migrations.Grants{Role: role, Database: s.db.Name, Outbox: []migrations.Table{{Schema: "public", Name: "outbox"}}}))
	s.db.Exec(t, `ALTER ROLE `+role+` PASSWORD 'p'`)
	t.Cleanup(func() { s.db.Exec(t, `DROP OWNED BY `+role+`; DROP ROLE `+role) })
	rewrite(t, s.path, s.db.DSN, s.db.As(role, "p"))
	id := scalar(t, s.db, `SELECT event_id::text FROM outbox WHERE payload ->> 'n' = '7'`)
	s.replay(t, "--event-id", id, "--yes", "--reason", "a test").expect(t, exitDone)
	s.replay(t, "list").expect(t, exitDone)
	if _, marked := copies(t, s.broker.ReadAll(t, "events")); len(marked) != 1 {
		t.Errorf("%d copies", len(marked))
	}
}
