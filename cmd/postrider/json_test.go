package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// asDocumented fails the test where what a command printed is not one document, or a list or
// line of such, of exactly the fields that docs/cli.md lists for it.
func asDocumented(t *testing.T, command, out string) {
	t.Helper()
	document, ok := jsonDocuments["postrider "+command]
	if !ok {
		t.Fatalf("%s: no documented fields", command)
	}
	texts := []string{out}
	if command == "checkpoint history" {
		texts = strings.Split(strings.TrimSpace(out), "\n")
	}
	for _, text := range texts {
		v := reflect.New(reflect.TypeOf(document))
		dec := json.NewDecoder(strings.NewReader(text))
		dec.DisallowUnknownFields()
		if err := dec.Decode(v.Interface()); err != nil {
			t.Errorf("%s: %v in %s", command, err, text)
			return
		}
		if dec.More() {
			t.Errorf("%s: more than one document: %s", command, text)
		}
		again, err := json.Marshal(v.Interface())
		if err != nil {
			t.Fatal(err)
		}
		if missing := missingFields(t, again, []byte(text)); len(missing) > 0 {
			t.Errorf("%s: %v are documented and not there: %s", command, missing, text)
		}
	}
}

// missingFields are those that the first document has and the second has not.
func missingFields(t *testing.T, want, got []byte) (missing []string) {
	t.Helper()
	fields := func(text []byte) map[string]bool {
		var v any
		if err := json.NewDecoder(bytes.NewReader(text)).Decode(&v); err != nil {
			t.Fatal(err)
		}
		all := map[string]bool{}
		var walk func(string, any)
		walk = func(path string, v any) {
			switch v := v.(type) {
			case map[string]any:
				for name, value := range v {
					all[path+"."+name] = true
					walk(path+"."+name, value)
				}
			case []any:
				for _, value := range v {
					walk(path+"[]", value)
				}
			}
		}
		walk("", v)
		return all
	}
	has := fields(got)
	for field := range fields(want) {
		if !has[field] {
			missing = append(missing, field)
		}
	}
	slices.Sort(missing)
	return missing
}

// What --json prints is one valid document with the documented fields, also where the command
// ends with an error after it has looked: scripts read it then most of all.
func TestJSONIsAsDocumented(t *testing.T) {
	t.Parallel()
	s := newStack(t, "")
	rewrite(t, s.path, "on_refusal: halt", "on_refusal: park_event")
	seen := map[string]bool{}
	tell := func(code int, args ...string) {
		t.Helper()
		command := args[0]
		if len(args) > 1 && jsonDocuments["postrider "+args[0]+" "+args[1]] != nil {
			command += " " + args[1]
		}
		seen["postrider "+command] = true
		r := runBinary(t, nil, append(args, "--json", "--config", s.path)...)
		if r.expect(t, code); r.out == "" && code != exitDone {
			t.Errorf("%v: nothing was printed: %s", args, r.err)
			return
		}
		asDocumented(t, command, r.out)
	}
	const done, usage, slot, halted, findings = exitDone, 2, 5, 6, 8

	tell(done, "setup")
	tell(done, "config", "check")
	s.insert(t, `'{"n": 1}'`)
	s.insert(t, `NULL`)
	tell(done, "checkpoint", "peek", "--payload")
	tell(slot, "checkpoint", "wait", "--now", "--timeout", "10ms")
	tell(usage, "checkpoint", "advance", "--now", "--reason", "a test")
	tell(done, "backfill")
	relay := startRun(t, s.path)
	relay.ready()
	s.awaitStates(t, "parked")
	s.awaitReplayable(t, 1)
	tell(done, "checkpoint", "wait", "--now")
	tell(done, "pause", "--reason", "a test")
	tell(done, "resume", "--reason", "a test")
	tell(done, "checkpoint", "show")
	tell(done, "checkpoint", "list")
	tell(done, "checkpoint", "verify")
	tell(slot, "checkpoint", "drop", "--confirm", "x", "--reason", "a test")
	tell(done, "parked", "list")
	number := scalar(t, s.db, "SELECT id::text FROM postrider.parked")
	tell(done, "parked", "show", number, "--payload")
	tell(done, "parked", "assign", number, "--to", "me")
	tell(halted, "parked", "retry", number)
	tell(done, "parked", "discard", number, "--reason", "a test")
	tell(usage, "parked", "discard", number, "--reason", "a test")
	tell(done, "parked", "erase", number, "--reason", "a test")
	tell(done, "replay", "--all")
	tell(done, "replay", "--all", "--yes", "--reason", "a test")
	tell(done, "replay", "list", "--all")
	tell(done, "replay", "show", "2")
	tell(done, "reconcile")
	tell(done, "trace", scalar(t, s.db, "SELECT event_id::text FROM outbox WHERE payload IS NOT NULL"))
	tell(findings, "trace", "nowhere")
	tell(done, "purge", "--older-than", "0s", "--dry-run")
	tell(done, "doctor", "--only", "wal_level")
	tell(findings, "run", "--shadow", "--for", "1s")
	tell(done, "checkpoint", "history")
	if err := relay.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-relay.ended

	tell(done, "recover")
	s.db.Exec(t, `INSERT INTO postrider.task (publisher, kind, state, reason, created_by, total, snapshot, detail)
		SELECT publisher, kind, 'planned', 'x', 'a@b', total, snapshot, detail || '{"needs_approval": true, "db_user": "x"}' FROM postrider.task WHERE id = 2`)
	second := scalar(t, s.db, "SELECT max(id)::text FROM postrider.task")
	tell(done, "replay", "approve", second)
	tell(done, "replay", "cancel", second, "--reason", "a test")
	tell(done, "checkpoint", "accept")
	tell(usage, "checkpoint", "drop")
	s.db.Exec(t, "SELECT pg_drop_replication_slot(slot) FROM postrider.checkpoint")
	tell(findings, "checkpoint", "verify")
	tell(slot, "checkpoint", "wait", "--now")
	tell(slot, "checkpoint", "accept")

	without := []string{"postrider bench", "postrider demo", "postrider version"} // tests of their own; and no --config
	for _, command := range slices.Sorted(maps.Keys(jsonDocuments)) {
		if !seen[command] && !slices.Contains(without, command) {
			t.Errorf("%s was not run", command)
		}
	}
}
