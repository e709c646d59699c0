package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/recovery"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/replication"
)

// TestRecoverRowsDeletedMeanwhile: rows that somebody deletes while a recovery works cannot be
// published any more. Those whose events a topic has are settled by that; the others are
// told, and not counted as published.
func TestRecoverRowsDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 1, nil)
	f.series("order", "k", 1, 5)
	f.quietRelay()
	f.series("order", "k", 6, 15)
	// Nothing says which rows are published: all are compared.
	f.db.Exec(t, "UPDATE postrider.checkpoint SET snapshot = NULL, idle = false")
	f.db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", f.db.Slot))

	release, waiting := f.hold("postrider.task", "UPDATE", "NEW.detail ->> 'step' = 'listed' AND OLD.detail ->> 'step' <> 'listed'")
	p := spawn(t, "recover", "--yes", "--rate", "5", "--config", f.yaml(""))
	waiting()
	f.db.Exec(t, "DELETE FROM outbox WHERE payload IN ('5', '7', '8')") // 5 is in the topic
	release()
	f.awaitRecords(f.topic("order"), 5+2)
	if code := p.terminate(); code != operr.DrainIncomplete.ExitCode() {
		t.Fatalf("exit code %d: %s", code, p.said())
	}
	f.gone("postrider recover")
	f.db.Exec(t, "DELETE FROM outbox WHERE payload IN ('6', '15')") // 6 was published before
	done := f.recover("--resume", "--rate", "1000")
	if done.code != 0 || done.Published != 7 || done.Gone != 3 || done.Comparison.Gone != 2 || done.Comparison.InTopic != 5 {
		t.Errorf("%d, %d published, %d gone, %+v", done.code, done.Published, done.Gone, done.Comparison)
	}
	if ids := f.scalar("SELECT count(*) || ' ' || count(*) FILTER (WHERE outcome LIKE 'gone:%') FROM postrider.task_item"); ids != "3 3" {
		t.Errorf("items that are left, and gone: %s", ids)
	}
	f.ran()
	if got := values(f.broker.ReadAll(t, f.topic("order"))); fmt.Sprint(got) != "[1 2 3 4 5 6 9 10 11 12 13 14]" {
		t.Errorf("the topic has %v", got)
	}
}

// TestRecoverMeetsAHolder: whoever takes the slot between the look at it and the task publishes what
// the stream brings; nothing of the table may come between. The recovery gives up.
func TestRecoverMeetsAHolder(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 1, nil)
	f.series("order", "k", 1, 5)
	f.quietRelay()
	release, waiting := f.hold("postrider.task", "INSERT", "true")
	p := spawn(t, "recover", "--yes", "--anyway", "--config", f.yaml(""))
	waiting()
	session, err := replication.Connect(t.Context(), f.cfg.Replication)
	must(t, err)
	stream, err := session.Start(t.Context())
	must(t, err)
	release()
	requireExit(t, p, operr.Slot.ExitCode(), "is held by")
	must(t, stream.Close(t.Context()))
	f.ran()
}

// TestResumeKeepsTheList: the events that only the topic has are found once, by the comparison. A
// recovery that is resumed behind it does not empty the file that names them.
func TestResumeKeepsTheList(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 1, nil)
	f.series("order", "k", 1, 5)
	f.quietRelay()
	f.series("order", "k", 6, 60)
	f.db.Exec(t, "DELETE FROM outbox WHERE payload = '5'; UPDATE postrider.checkpoint SET idle = false")
	f.db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", f.db.Slot))
	list := filepath.Join(t.TempDir(), "only.jsonl")
	p := spawn(t, "recover", "--yes", "--rate", "10", "--topic-only", list, "--config", f.yaml(""))
	f.awaitRecords(f.topic("order"), 8)
	if code := p.terminate(); code != operr.DrainIncomplete.ExitCode() {
		t.Fatalf("exit code %d: %s", code, p.said())
	}
	f.gone("postrider recover")
	if n := len(lines(t, list)); n != 1 {
		t.Fatalf("%d lines", n)
	}
	if done := f.recover("--resume", "--rate", "1000", "--topic-only", list); done.code != 0 {
		t.Fatalf("%d: %s", done.code, done.stderr)
	}
	if n := len(lines(t, list)); n != 1 {
		t.Errorf("%d lines after --resume", n)
	}
	if healthy := f.recover("--topic-only", list); healthy.code != 0 || len(lines(t, list)) != 1 {
		t.Errorf("%d, and %d lines where nothing was compared", healthy.code, len(lines(t, list)))
	}
}

// TestAbandonWithoutAPosition: where nothing is stored, a slot that a recovery made and left would
// let `run` begin behind events that were not published.
func TestAbandonWithoutAPosition(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 1, nil)
	f.series("order", "k", 1, 60)
	f.db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", f.db.Slot))
	if dry := f.recover(); dry.Diagnosis.Case != recovery.CaseNoRow {
		t.Fatalf("%+v", dry.Diagnosis)
	}
	p := spawn(t, "recover", "--yes", "--rate", "10", "--config", f.yaml(""))
	f.awaitRecords(f.topic("order"), 3)
	if code := p.terminate(); code != operr.DrainIncomplete.ExitCode() {
		t.Fatalf("exit code %d: %s", code, p.said())
	}
	f.gone("postrider recover")
	requireDone(t, spawn(t, "recover", "--abandon", "--config", f.yaml("")))
	requireExit(t, spawn(t, "run", "--until-lsn", "now", "--config", f.yaml("")), operr.Slot.ExitCode(), "does not exist")
	if done := f.recover("--yes"); done.code != 0 {
		t.Fatalf("%d: %s", done.code, done.stderr)
	}
	f.ran()
	if copies := f.requireSeries(f.topic("order"), 1, 60); copies != 0 {
		t.Errorf("%d copies", copies)
	}
}

// TestRunWaitsForTheLastOfACommand: a backfill or recovery that was given up while it worked stops
// within a second, and has events on their way until then: older ones than the stream's.
func TestRunWaitsForTheLastOfACommand(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 1, nil)
	f.series("order", "k", 1, 3)
	worker := f.db.Conn(t)
	_, err := worker.Exec(context.Background(), "SELECT pg_advisory_lock(hashtextextended('postrider test', 0))")
	must(t, err)
	run := spawn(t, "run", "--config", f.yaml(""))
	run.awaitLine("another command works on it")
	if n := len(f.broker.ReadAll(t, f.topic("order"))); n != 0 {
		t.Errorf("%d records", n)
	}
	_, err = worker.Exec(context.Background(), "SELECT pg_advisory_unlock_all()")
	must(t, err)
	f.awaitRecords(f.topic("order"), 3)
	if code := run.terminate(); code != 0 {
		t.Errorf("%d: %s", code, run.said())
	}
}
