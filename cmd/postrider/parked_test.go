package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// poisoned lets the stack's broker refuse batches in which one of the texts stands, with
// code 10, while on says so.
func (s *stack) poisoned(texts ...string) (on *atomic.Bool) { return s.answering(10, texts...) }

// answering is poisoned with another code.
func (s *stack) answering(code int16, texts ...string) (on *atomic.Bool) {
	on = new(atomic.Bool)
	on.Store(true)
	s.broker.Server.Cluster.ControlKey(int16(kmsg.Produce), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		s.broker.Server.Cluster.KeepControl()
		req := kreq.(*kmsg.ProduceRequest)
		if !on.Load() || len(req.Topics) == 0 {
			return nil, nil, false
		}
		guilty := map[int32]bool{}
		for _, text := range texts {
			for _, p := range req.Topics[0].Partitions {
				if bytes.Contains(p.Records, []byte(text)) {
					guilty[p.Partition] = true
				}
			}
		}
		if len(guilty) == 0 {
			return nil, nil, false
		}
		res := req.ResponseKind().(*kmsg.ProduceResponse)
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic = req.Topics[0].Topic
		for _, p := range req.Topics[0].Partitions {
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p.Partition, 19 // not appended: its neighbours come again, alone
			if guilty[p.Partition] {
				rp.ErrorCode = code
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		res.Topics = append(res.Topics, rt)
		return res, nil, true
	})
	return on
}

func (s *stack) insertKey(t *testing.T, key, payload string) {
	t.Helper()
	s.db.Exec(t, fmt.Sprintf(`INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload)
		VALUES (gen_random_uuid(), 'order', '%s', 'OrderPlaced', '%s')`, key, payload))
}

// awaitStates waits for the states of all parked events, in order.
func (s *stack) awaitStates(t *testing.T, want string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		got := scalar(t, s.db, `SELECT coalesce(string_agg(state, ' ' ORDER BY commit_lsn, event_index), '') FROM postrider.parked`)
		if got != want {
			return fmt.Errorf("states %s, want %s", got, want)
		}
		return nil
	})
}

// parked runs a parked command on the real binary.
func (s *stack) parked(t *testing.T, args ...string) result {
	t.Helper()
	return runBinary(t, nil, append(append([]string{"parked"}, args...), "--config", s.path)...)
}

// case C41: the commands tell the truth. Five parked events, of which one is refused
// again: its code, its counts and its row say so; a second run publishes nothing new; an
// unknown number and a dry run change nothing; what was interrupted is taken back.
func TestParkedCommandsTellTheTruth(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	rewrite(t, s.path, "on_refusal: halt", "on_refusal: park_aggregate")
	on := s.poisoned("poison")
	p := startRun(t, s.path)
	p.ready()
	for n := 1; n <= 5; n++ {
		word := "poison"
		if n == 3 {
			word = "poison-for-good"
		}
		s.insertKey(t, fmt.Sprintf("k%d", n), fmt.Sprintf(`{"n": "%s-%d"}`, word, n))
	}
	s.insertKey(t, "k4", `{"n": "behind"}`)
	s.awaitStates(t, "parked parked parked parked parked parked")

	var list struct {
		Total   int
		Keys    int `json:"held_keys"`
		Reasons map[string]int
		Events  []struct {
			ID       int64
			EventID  string `json:"event_id"`
			Attempts int
		}
	}
	r := s.parked(t, "list", "--json")
	r.expect(t, exitDone)
	if err := json.Unmarshal([]byte(r.out), &list); err != nil || list.Total != 6 || list.Keys != 5 || list.Reasons["too_large"] != 5 || list.Reasons["held"] != 1 {
		t.Fatalf("%v in %s", err, r.out)
	}
	if strings.Contains(r.out, "poison") {
		t.Error("a payload is shown unasked")
	}
	s.parked(t, "retry", "999999").expect(t, operr.Config.ExitCode(), "999999")
	s.parked(t, "retry").expect(t, operr.Config.ExitCode(), "--all")
	if r := s.parked(t, "retry", "--all", "--dry-run"); r.code != exitDone || !strings.Contains(r.out, "6 events") {
		t.Errorf("dry run: %+v", r)
	}
	s.awaitStates(t, "parked parked parked parked parked parked")

	on.Store(false)
	s.poisoned("poison-for-good")
	r = s.parked(t, "retry", "--all", "--json")
	r.expect(t, operr.Halted.ExitCode(), "5 published, 1 refused again")
	s.awaitStates(t, "published published parked published published published")
	if got := scalar(t, s.db, `SELECT attempts::text FROM postrider.parked WHERE state = 'parked'`); got != "2" {
		t.Errorf("%s attempts", got)
	}
	r = s.parked(t, "retry", "--all")
	r.expect(t, operr.Halted.ExitCode())
	if !strings.Contains(r.out, "0 published, 1 refused again") {
		t.Errorf("the second run says %s", r.out)
	}
	if n := len(s.broker.ReadAll(t, "events")); n != 5 {
		t.Errorf("%d records", n)
	}

	// Without a relay nothing is begun, and what was asked for is taken back.
	p.signal(syscall.SIGTERM)
	p.end().expect(t, exitDone)
	s.parked(t, "retry", "--all", "--timeout", "1s").expect(t, operr.DrainIncomplete.ExitCode(), "taken back")
	s.awaitStates(t, "published published parked published published published")

	p = startRun(t, s.path)
	p.ready()
	number := fmt.Sprint(list.Events[2].ID)
	payload := filepath.Join(t.TempDir(), "payload.json")
	if err := os.WriteFile(payload, []byte(`{"n": "repaired"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s.parked(t, "retry", number, "--payload-file", payload).expect(t, operr.Config.ExitCode(), "--reason")
	s.parked(t, "retry", number, "--payload-file", payload, "--reason", "it was poison").expect(t, exitDone)
	records := s.broker.ReadAll(t, "events")
	last := records[len(records)-1]
	for _, r := range records {
		if string(r.Value) == `{"n": "repaired"}` {
			last = r
		}
	}
	marked, id := false, ""
	for _, h := range last.Headers {
		marked = marked || h.Key == "postrider-repaired" && string(h.Value) == "true"
		if h.Key == "id" {
			id = string(h.Value)
		}
	}
	if !marked || id != list.Events[2].EventID || string(last.Value) != `{"n": "repaired"}` {
		t.Errorf("repaired: %+v", last)
	}
	if got := scalar(t, s.db, `SELECT string_agg(DISTINCT action, ' ' ORDER BY action) FROM postrider.audit WHERE action LIKE 'parked.%'`); got !=
		"parked.cancel parked.claim parked.park parked.publish parked.repair parked.retry parked.return" {
		t.Errorf("audit: %s", got)
	}
}

// Discarding wants a reason and lets the key go on; erasing removes the bytes and keeps
// the fact; show and export show bytes only when asked.
func TestParkedDiscardEraseAssign(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	rewrite(t, s.path, "on_refusal: halt", "on_refusal: park_aggregate")
	s.poisoned("poison")
	p := startRun(t, s.path)
	p.ready()
	s.insertKey(t, "k", `{"n": "poison"}`)
	s.insertKey(t, "k", `{"n": 2}`)
	s.insertKey(t, "j", `{"n": "poison of j"}`)
	s.awaitStates(t, "parked parked parked")
	s.parked(t, "assign", "--aggregate", "k", "--to", "billing").expect(t, exitDone)
	if r := s.parked(t, "list", "--no-owner"); !strings.Contains(r.out, "1 events (too_large 1)") {
		t.Errorf("without an owner: %s", r.out)
	}
	number := scalar(t, s.db, `SELECT id::text FROM postrider.parked WHERE aggregate_id = 'k' AND reason = 'too_large'`)
	if r := s.parked(t, "show", number); strings.Contains(r.out, "poison") || !strings.Contains(r.out, "billing") {
		t.Errorf("show: %s", r.out)
	}
	if r := s.parked(t, "show", number, "--payload"); !strings.Contains(r.out, `{"n": "poison"}`) {
		t.Errorf("show --payload: %s", r.out)
	}
	s.parked(t, "discard", number).expect(t, operr.Config.ExitCode(), "--reason")
	s.parked(t, "discard", number, "--reason", "a test").expect(t, exitDone)
	s.awaitStates(t, "discarded published parked")
	s.parked(t, "erase", "--aggregate", "j", "--reason", "asked for by the person").expect(t, exitDone)
	s.awaitStates(t, "discarded published discarded")
	if r := s.parked(t, "export", "--state", "all", "--payload"); strings.Contains(r.out, "poison of j") || strings.Count(r.out, "\n") != 3 {
		t.Errorf("export: %s", r.out)
	}
	s.insertKey(t, "j", `{"n": 2}`)
	runBinary(t, nil, "checkpoint", "wait", "--now", "--timeout", "20s", "--config", s.path).expect(t, exitDone)
	if n := len(s.broker.ReadAll(t, "events")); n != 2 {
		t.Errorf("%d records", n)
	}
	p.signal(syscall.SIGTERM)
	p.end().expect(t, exitDone)
}

// case C41: interrupted when two of five events are published, the command says so: what
// is done is done, the others are still on their way and arrive once, without it.
func TestParkedRetryInterrupted(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	rewrite(t, s.path, "on_refusal: halt", "on_refusal: park_aggregate")
	on := s.poisoned("poison")
	p := startRun(t, s.path)
	p.ready()
	for n := 1; n <= 5; n++ {
		s.insertKey(t, fmt.Sprintf("k%d", n), fmt.Sprintf(`{"n": "poison-%d"}`, n))
	}
	s.awaitStates(t, "parked parked parked parked parked")
	on.Store(false)
	stalled := s.answering(19, "poison-3", "poison-4", "poison-5")
	retry := exec.Command(binary, "parked", "retry", "--all", "--json", "--config", s.path)
	var out, errs bytes.Buffer
	retry.Stdout, retry.Stderr = &out, &errs
	if err := retry.Start(); err != nil {
		t.Fatal(err)
	}
	s.awaitStates(t, "published published publishing publishing publishing")
	if err := retry.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = retry.Wait() // its code is in ProcessState
	result{code: retry.ProcessState.ExitCode(), out: out.String(), err: errs.String()}.expect(t, operr.DrainIncomplete.ExitCode(), "interrupted")
	var said struct{ Published, Waiting int }
	if err := json.Unmarshal(out.Bytes(), &said); err != nil || said.Published != 2 || said.Waiting != 3 {
		t.Errorf("it says %s (%v)", out.String(), err)
	}
	s.awaitStates(t, "published published publishing publishing publishing")
	stalled.Store(false)
	s.awaitStates(t, "published published published published published")
	if n := len(s.broker.ReadAll(t, "events")); n != 5 {
		t.Errorf("%d records", n)
	}
	p.signal(syscall.SIGTERM)
	p.end().expect(t, exitDone)
}

// case C41: what no relay has tried was not refused again.
func TestRetryWithoutARelay(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	rewrite(t, s.path, "on_refusal: halt", "on_refusal: park_event")
	s.insert(t, "NULL")
	s.drained(t)
	s.awaitStates(t, "parked")
	r := s.parked(t, "retry", "--all", "--timeout", "300ms", "--json")
	r.expect(t, operr.DrainIncomplete.ExitCode(), "1 were taken back", "whether a relay runs")
	var told retried
	if err := json.Unmarshal([]byte(r.out), &told); err != nil || told.Refused != 0 || told.Waiting != 1 {
		t.Errorf("%v in %s", err, r.out)
	}
	s.awaitStates(t, "parked")
}

// A table of the widest events keeps within 100 columns, in one line each; the fields of
// --json are those that docs/refusals.md documents; what is not there is told with a remedy.
func TestParkedListIsNarrow(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	long := strings.Repeat("ä", 60)
	s.db.Exec(t, fmt.Sprintf(`INSERT INTO postrider.parked (publisher, slot, system_id, timeline, commit_lsn, event_index, state, reason, error, attempts,
			parked_at, owner, event_id, event_type, aggregate_id, topic, value, unit)
		SELECT (SELECT publisher FROM postrider.checkpoint), 's', '1', 1, '0/10', i, 'publishing', (ARRAY['undecodable_value', 'invalid_timestamp', 'invalid_partition'])[i %% 3 + 1], '', 12345,
			now() - i * interval '40 days', '%[1]s', '%[1]s' || i, '%[1]s', E'line\nof\tits\x1b[31m own %[1]s', '%[1]s', 'x', 'u' FROM generate_series(1, 120) i`,
		long))
	r := s.parked(t, "list")
	r.expect(t, exitDone)
	lines := strings.Split(strings.TrimSuffix(r.out, "\n"), "\n")
	if len(lines) != 1+100+6 || strings.ContainsAny(r.out, "\x1b\t") || !strings.Contains(r.out, "the oldest 100 are listed") {
		t.Errorf("%d lines: %s", len(lines), r.out)
	}
	for _, line := range lines {
		if n := utf8.RuneCountInString(line); n > 100 {
			t.Errorf("a line of %d columns: %s", n, line)
		}
	}
	if r := s.parked(t, "list", "--reason-is", "too_large"); r.code != exitDone || r.out != "no event that is asked for is parked\n" {
		t.Errorf("of another reason: %+v", r)
	}
	if r := s.parked(t, "show", "1"); r.code != exitDone || strings.Contains(r.out, "\x1b") || !strings.Contains(r.out, `line\nof\tits\u001b`) {
		t.Errorf("show: %+v", r)
	}
	s.parked(t, "list", "--limit", "-1").expect(t, operr.Config.ExitCode(), "--limit", "Try: ")
	s.parked(t, "show", "4711").expect(t, operr.Config.ExitCode(), "no parked event [4711]", "Try: postrider parked list")

	var list, one map[string]any
	page, err := os.ReadFile("../../docs/refusals.md")
	if err != nil {
		t.Fatal(err)
	}
	_, documented, _ := strings.Cut(string(page), "## `--json`")
	if err := json.Unmarshal([]byte(s.parked(t, "list", "--limit", "1", "--json").out), &list); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(s.parked(t, "show", "1", "--payload", "--json").out), &one); err != nil {
		t.Fatal(err)
	}
	for _, doc := range []map[string]any{list, one, list["events"].([]any)[0].(map[string]any)} {
		for field := range doc {
			if !strings.Contains(documented, "`"+field+"`") {
				t.Errorf("docs/refusals.md does not document %s", field)
			}
		}
	}
}

// Every parked command shows examples.
func TestParkedHelpHasExamples(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"list", "show", "retry", "discard", "assign", "export", "erase"} {
		if r := runBinary(t, nil, "parked", command, "--help"); r.code != exitDone || !strings.Contains(r.out, "Examples:\n  postrider parked "+command) {
			t.Errorf("%s: %s", command, r.out)
		}
	}
}
