package backfill

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/reissue"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/migrations"
)

// rule 6: each row comes once, either from the table or from the stream. A row that was
// updated since the slot's birth looks new (rule 4) and does not come on the stream; one
// that was deleted and put in again does.
func TestSeamOfTableAndStream(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "1 a 1", "2 a 2", "3 b 3", "4 a 4")
	f.setup()
	f.insert("5 a 5")
	f.db.Exec(t, "UPDATE outbox SET done_at = now() WHERE id IN ('2', '5'); BEGIN; DELETE FROM outbox WHERE id = '3'; INSERT INTO outbox VALUES ('3', 'b', '3'); COMMIT")
	f.insert("6 b 6")

	b := f.open()
	p, err := b.DryRun(t.Context())
	must(t, err)
	if p.Events != 3 || p.Changed != 1 || p.Slot != f.db.Slot || p.Unended != nil || p.Warning != "" || len(p.Groups) != 1 || p.Groups[0].Topic != f.topic {
		t.Errorf("dry run %+v", p)
	}
	b.Close(t.Context())
	f.requireTopic()
	out, err := f.start()
	must(t, err)
	if out.State != reissue.Done || out.Total != 3 || out.Published != 3 || out.Changed != 1 || out.Refused != 0 || out.MayRepeat != 0 {
		t.Errorf("%+v", out)
	}
	// The row that was updated has the time of its update; no column says more.
	f.requireTopic("+1 1", "+4 4", "+2 2")
	must(t, f.run())
	f.requireTopic("+1 1", "+4 4", "+2 2", "5 5", "3 3", "6 6")
	if n := f.scalar("SELECT count(*)::text FROM postrider.task_item"); n != "0" {
		t.Errorf("%s items are left of a task that is done", n)
	}
	if audit := f.scalar("SELECT string_agg(action || ' ' || actor, ', ' ORDER BY id) FROM postrider.audit WHERE action LIKE 'backfill.%'"); audit != "backfill.plan tester@here, backfill.listed tester@here, backfill.begin tester@here, backfill.done tester@here" {
		t.Errorf("audit: %s", audit)
	}
	_, err = f.start()
	requireRefused(t, err, operr.Slot, "replay", "published 3 events")
}

// trap 28, rule 6: a transaction that was open at the very moment of the slot's birth, with
// a savepoint, and rows that are older by id and by time than rows that are before the slot.
// It comes on the stream, and not by backfill.
func TestTransactionOpenAtTheBirth(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	// The making of a slot waits for those that are open when it begins, then for those
	// that began meanwhile; the third is open when it is done.
	first, firstID := f.begin()
	first("INSERT INTO outbox VALUES ('1', 'a', '1')")
	made := make(chan struct{})
	go func() {
		defer close(made)
		f.setup()
	}()
	f.awaitWaiter(firstID)
	second, secondID := f.begin()
	second("INSERT INTO outbox VALUES ('2', 'a', '2')")
	first("COMMIT")
	f.awaitWaiter(secondID)
	third, _ := f.begin()
	third("INSERT INTO outbox VALUES ('3', 'a', '3'); SAVEPOINT s; INSERT INTO outbox VALUES ('4', 'a', '4'); RELEASE s")
	f.insert("5 a 5")
	second("COMMIT")
	<-made
	third("INSERT INTO outbox VALUES ('6', 'a', '6'); COMMIT")
	f.insert("7 a 7")
	out, err := f.start()
	must(t, err)
	before := f.scalar("SELECT birth_snapshot::text FROM postrider.checkpoint")
	must(t, f.run())
	// Whether 5, which committed between, is before the slot or behind it is the server's to say.
	streamed := []string{"3 3", "4 4", "6 6", "7 7"}
	if out.Total == 2 {
		f.requireTopic(append([]string{"+1 1", "+2 2", "5 5"}, streamed...)...)
	} else {
		f.requireTopic(append([]string{"+1 1", "+5 5", "+2 2"}, streamed...)...)
	}
	t.Logf("birth snapshot %s, %d rows before it", before, out.Total)
}

// The rights that setup gives to the running role are enough.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "1 a 1", "2 a 2")
	f.setup()
	f.db.Exec(t, "UPDATE outbox SET done_at = now() WHERE id = '1'")
	role := testkit.Unique(t)
	f.db.Exec(t, migrations.GrantsSQL(migrations.Grants{Role: role, Database: f.db.Name, Outbox: []migrations.Table{{Schema: "public", Name: "outbox"}}})+
		"; ALTER ROLE "+role+" PASSWORD 'x'; REVOKE TEMPORARY ON DATABASE "+f.db.Name+" FROM PUBLIC")
	t.Cleanup(func() { f.db.Exec(t, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	f.cfg.Replication.ConnString = f.db.As(role, "x")
	out, err := f.start()
	must(t, err)
	if out.Changed != 1 || out.Published != 2 {
		t.Errorf("%+v", out)
	}
}

// Where the backfill was done and nothing published since, it is said so.
func TestSecondBackfill(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "1 a 1")
	f.setup()
	_, err := f.start()
	must(t, err)
	_, err = f.start()
	requireRefused(t, err, operr.Config, "replay", "did it", "1 events of 1")
	_, err = f.resume()
	requireRefused(t, err, operr.Config, "--dry-run", "none that has not ended")
	f.requireTopic("+1 1")
}

// Each situation in which rows from before the slot are not known, or would come too late.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(f *fixture)
		class operr.Class
		hint  string
		says  string
	}{
		"no position": {func(*fixture) {}, operr.Slot, "postrider setup", "no position is stored"},
		"no snapshot": {func(f *fixture) {
			f.setup()
			f.db.Exec(f.t, "UPDATE postrider.checkpoint SET birth_snapshot = NULL")
		}, operr.Slot, "run postrider setup again", "was made without postrider setup"},
		"slot dropped": {func(f *fixture) {
			f.setup()
			f.db.Exec(f.t, "SELECT pg_drop_replication_slot('"+f.db.Slot+"')")
		}, operr.Slot, "", "does not exist"},
		"slot moved": {func(f *fixture) {
			f.setup()
			f.insert("2 a 2")
			f.db.Exec(f.t, "SELECT pg_replication_slot_advance('"+f.db.Slot+"', pg_current_wal_lsn())")
		}, operr.Slot, "", "past the stored position"},
		"other system": {func(f *fixture) {
			f.setup()
			f.db.Exec(f.t, "UPDATE postrider.checkpoint SET system_id = '1'")
		}, operr.Slot, "", "belongs to system identifier 1"},
		"promoted": {func(f *fixture) {
			f.setup()
			f.db.Exec(f.t, "UPDATE postrider.checkpoint SET timeline = timeline + 1")
		}, operr.Slot, "recover", "promoted"},
		"events published": {func(f *fixture) {
			f.setup()
			f.insert("2 a 2")
			must(f.t, f.run())
		}, operr.Slot, "postrider replay", "published 1 events already"},
		"older schema": {func(f *fixture) {
			f.setup()
			f.db.Exec(f.t, "DROP TABLE postrider.task CASCADE")
		}, operr.Postgres, "postrider setup", "task"},
		"publication gone": {func(f *fixture) {
			f.setup()
			f.db.Exec(f.t, "DROP PUBLICATION "+f.db.Publication)
		}, operr.Postgres, "", "publication"},
		"column renamed": {func(f *fixture) {
			f.setup()
			f.db.Exec(f.t, "ALTER TABLE outbox RENAME payload TO body")
		}, operr.Config, "mapping", `"payload"`},
		"event id renamed while rows wait": {func(f *fixture) {
			f.db.Exec(f.t, "ALTER TABLE outbox RENAME id TO event")
			f.setup()
			f.insert("2 a 2")
			f.db.Exec(f.t, "ALTER TABLE outbox RENAME event TO id")
		}, operr.Slot, "mapping", `no column "id"`},
		"no broker": {func(f *fixture) {
			f.setup()
			f.cfg.Kafka.Brokers = []string{"127.0.0.1:1"}
		}, operr.Kafka, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, "1 a 1")
			c.spoil(f)
			_, err := f.start()
			requireRefused(t, err, c.class, c.hint, c.says)
			if name == "older schema" {
				return
			}
			if open := f.scalar("SELECT count(*)::text FROM postrider.task WHERE state <> 'cancelled'"); open != "0" {
				t.Errorf("%s tasks stand open", open)
			}
			if name == "no snapshot" || name == "promoted" {
				_, err := f.open().DryRun(t.Context())
				requireRefused(t, err, c.class, c.hint, c.says)
			}
		})
	}
}

// While a relay holds the slot newer events may be going out. Its name is told.
func TestSlotHeld(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "1 a 1")
	f.setup()
	defer holdSlot(f)()
	_, err := f.start()
	requireRefused(t, err, operr.Slot, "stop postrider run", "is held by pid", "postrider")
	f.requireTopic()
}

// trap 28 and C41 for backfill: interrupted in the middle it goes on where it was; run does
// not start meanwhile, and says what to do.
func TestInterruptedAndResumed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.db.Exec(t, "INSERT INTO outbox SELECT i, 'k' || i % 3, to_jsonb(i) FROM generate_series(1, 300) i")
	f.setup()
	f.insert("301 k1 301")
	ctx, cancel := context.WithCancelCause(t.Context())
	b := f.open(func(c *Config) {
		c.PerSecond = 100
		c.Progress = func(p reissue.Progress) {
			if p.Done > 0 {
				cancel(errors.New("enough"))
			}
		}
	})
	out, err := b.Start(ctx)
	if err == nil || out.State != reissue.Failed || out.Done == 0 || out.Done >= 300 {
		t.Fatalf("%+v, %v", out, err)
	}
	b.Close(t.Context())

	err = f.run()
	requireRefused(t, err, operr.Slot, "postrider backfill --resume, or postrider backfill --cancel", "backfill", "is not ended", "of 300 events")
	_, err = f.start()
	requireRefused(t, err, operr.Slot, "postrider backfill --resume", "is not ended")
	p, err := f.open().DryRun(t.Context())
	must(t, err)
	if p.Unended == nil || p.Unended.Done != out.Done {
		t.Errorf("dry run %+v", p)
	}
	// A row that went meanwhile is no event any more.
	f.db.Exec(t, "DELETE FROM outbox WHERE id = '300'")
	out, err = f.resume()
	requireRefused(t, err, operr.Halted, "", "1 of 300 events could not be published")
	if out.State != reissue.Done || out.Done != 300 || out.Refused != 1 || len(out.Unpublished) != 1 || out.Unpublished[0].EventID != "300" || out.MayRepeat != 0 {
		t.Errorf("%+v", out)
	}
	must(t, f.run())
	seen, last := map[string]bool{}, ""
	for _, r := range f.broker.ReadAll(t, f.topic) {
		if seen[string(r.Value)] {
			t.Errorf("%s came twice", r.Value)
		}
		seen[string(r.Value)] = true
		last = string(r.Value)
	}
	if len(seen) != 300 || last != "301" {
		t.Errorf("%d events, the last is %s", len(seen), last)
	}
}

// An event that cannot be published keeps back those of its key, and run, until somebody
// decides. It is tried again, behind nothing of its key.
func TestRefusedEvents(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "1 a 1", "2 a null", "3 b 3", "4 a 4", "5 b 5")
	f.setup()
	f.insert("6 a 6")
	out, err := f.start()
	requireRefused(t, err, operr.Halted, "--resume --on-refusal skip", "2 of 5 events", "run does not start")
	if out.State != reissue.Failed || out.Refused != 2 || len(out.Unpublished) != 2 || out.Unpublished[0].EventID != "2" || out.Unpublished[1].EventID != "4" {
		t.Errorf("%+v", out)
	}
	f.requireTopic("+1 1", "+3 3", "+5 5")
	requireRefused(t, f.run(), operr.Slot, "backfill --resume", "is not ended")
	// Tried again in vain, then healed.
	out, err = f.resume()
	requireRefused(t, err, operr.Halted, "", "2 of 5 events")
	if out.Published != 0 || out.Total != 5 || out.Done != 5 {
		t.Errorf("%+v", out)
	}
	f.db.Exec(t, "UPDATE outbox SET payload = '2' WHERE id = '2'")
	out, err = f.resume()
	must(t, err)
	if out.State != reissue.Done || out.Published != 2 || out.Refused != 0 {
		t.Errorf("%+v", out)
	}
	must(t, f.run())
	f.requireTopic("+1 1", "+3 3", "+5 5", "+2 2", "+4 4", "6 6")
}

// With skip the others of the key go out, the backfill is done, and the exit code tells.
func TestRefusedEventsSkipped(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "1 a 1", "2 a null", "3 a 3")
	f.setup()
	f.db.Exec(t, "ALTER TABLE outbox ALTER id DROP NOT NULL")
	_, err := f.start()
	requireRefused(t, err, operr.Halted, "", "2 of 3")
	out, err := f.resume(func(c *Config) { c.Skip = true })
	requireRefused(t, err, operr.Halted, "", "1 of 3 events could not be published")
	if out.State != reissue.Done || out.Refused != 1 || out.Unpublished[0].EventID != "2" {
		t.Errorf("%+v", out)
	}
	f.requireTopic("+1 1", "+3 3")
	must(t, f.run())
}

// What a broker refuses is withheld like what the router does.
func TestBrokerRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.topic = f.broker.NewTopic(t, 1, map[string]string{"max.message.bytes": "2000"})
	f.cfg.Router.Sources[0].Routes[0].Topic = f.topic
	f.db.Exec(t, `INSERT INTO outbox SELECT i, 'k' || i % 2, CASE i WHEN 3 THEN to_jsonb(md5(random()::text) || repeat('x', 9000)) ELSE to_jsonb(i) END FROM generate_series(1, 6) i`)
	f.setup()
	out, err := f.start()
	requireRefused(t, err, operr.Halted, "--resume", "2 of 6 events")
	if len(out.Unpublished) != 2 || out.Unpublished[0].EventID != "3" || out.Unpublished[1].EventID != "5" {
		t.Errorf("%+v", out)
	}
	f.requireTopic("+1 1", "+2 2", "+4 4", "+6 6")
}

// Rows without an event id stop it before anything is published.
func TestRowsWithoutID(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "1 a 1")
	f.db.Exec(t, "INSERT INTO outbox VALUES (NULL, 'a', '2'), ('1', 'a', '3')")
	f.setup()
	_, err := f.start()
	requireRefused(t, err, operr.Halted, "--on-refusal skip", "1 rows from before the slot have no event id")
	f.requireTopic()
	out, err := f.start(func(c *Config) { c.Skip = true })
	must(t, err)
	if out.WithoutID != 1 || out.SharedID != 1 || out.Published != 1 {
		t.Errorf("%+v", out)
	}
	f.requireTopic("+1 1")
}

// A cancelled backfill lets run start; one that follows leaves out what it published.
func TestCancel(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.db.Exec(t, "INSERT INTO outbox SELECT i, 'k', to_jsonb(i) FROM generate_series(1, 50) i")
	f.setup()
	ctx, cancel := context.WithCancel(t.Context())
	b := f.open(func(c *Config) {
		c.PerSecond = 10
		c.Progress = func(p reissue.Progress) {
			if p.Done > 0 {
				cancel()
			}
		}
	})
	out, err := b.Start(ctx)
	if !errors.Is(err, context.Canceled) || out.Done == 0 || out.Done == 50 {
		t.Fatalf("%+v, %v", out, err)
	}
	b.Close(t.Context())
	task, err := f.open().Cancel(t.Context(), "wrong day")
	must(t, err)
	if task.State != reissue.Cancelled || task.Done != out.Done {
		t.Errorf("%+v", task)
	}
	_, err = f.open().Cancel(t.Context(), "")
	requireRefused(t, err, operr.Config, "", "none that has not ended")
	must(t, f.run())
	p, err := f.open().DryRun(t.Context())
	must(t, err)
	if p.Events != 50-out.Done {
		t.Errorf("dry run %+v behind %+v", p, out)
	}
	out, err = f.start()
	must(t, err)
	if out.Total != p.Events {
		t.Errorf("%+v", out)
	}
	var want []string
	for i := range 50 {
		want = append(want, fmt.Sprintf("+%d %[1]d", i+1))
	}
	f.requireTopic(want...)
}

// Two at once, and one that is cancelled from elsewhere while it publishes.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.db.Exec(t, "INSERT INTO outbox SELECT i, 'k', to_jsonb(i) FROM generate_series(1, 500) i")
	f.setup()
	began := make(chan struct{})
	first := f.open(func(c *Config) {
		c.PerSecond = 50
		c.Progress = func(p reissue.Progress) {
			if p.Done > 0 && began != nil {
				close(began)
				began = nil
			}
		}
	})
	ended := make(chan error, 1)
	var out Outcome
	waits := began
	go func() {
		var err error
		out, err = first.Start(t.Context())
		ended <- err
	}()
	<-waits
	_, err := f.start()
	requireRefused(t, err, operr.Slot, "", "another backfill or recover")
	_, err = f.open().Cancel(t.Context(), "stop")
	must(t, err)
	if err := <-ended; err == nil || out.State != reissue.Cancelled {
		t.Errorf("%+v, %v", out, err)
	}
}

// Ctrl-C at any step before the publishing leaves nothing behind that has to be resumed.
func TestInterruptedBefore(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"reading the stream", "listing"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, "1 a 1")
			f.setup()
			f.insert("2 a 2")
			ctx, cancel := context.WithCancel(t.Context())
			b := f.open(func(c *Config) {
				c.Say = func(format string, _ ...any) {
					if strings.HasPrefix(format, step) {
						cancel()
					}
				}
			})
			out, err := b.Start(ctx)
			if err == nil || out.State != reissue.Cancelled {
				t.Errorf("%+v, %v", out, err)
			}
			b.Close(t.Context())
			must(t, f.run())
			f.requireTopic("2 2")
			if n := f.scalar("SELECT count(*)::text FROM postrider.task_item"); n != "0" {
				t.Errorf("%s items are left", n)
			}
		})
	}
}

// A task whose process died while it listed the events is listed again.
func TestListingCutOff(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "1 a 1")
	f.setup()
	b := f.open()
	row, err := b.store.Load(t.Context())
	must(t, err)
	_, err = b.desk.Create(t.Context(), reissue.NewTask{Kind: reissue.Backfill, Params: params{Slot: row.Slot, BirthLSN: row.SlotBirth.String()}})
	must(t, err)
	b.Close(t.Context())
	out, err := f.resume()
	must(t, err)
	if out.State != reissue.Done || out.Published != 1 {
		t.Errorf("%+v", out)
	}
}

// A killed attempt says how much may come twice: no more than was listed and not saved.
func TestMayRepeat(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "1 a 1", "2 a 2")
	f.setup()
	b := f.open()
	row, err := b.standing(t.Context())
	must(t, err)
	must(t, b.ready(t.Context()))
	out := Outcome{}
	out.Task, err = b.desk.Create(t.Context(), reissue.NewTask{Kind: reissue.Backfill, Params: params{Slot: row.Slot, BirthLSN: row.SlotBirth.String()}})
	must(t, err)
	must(t, b.list(t.Context(), row, nil, &out))
	_, err = b.desk.Begin(t.Context(), out.Task)
	must(t, err)
	b.Close(t.Context()) // as a killed process leaves it
	out, err = f.resume()
	must(t, err)
	if out.MayRepeat != 2 || out.Published != 2 || out.State != reissue.Done {
		t.Errorf("%+v", out)
	}
}
