package backfill

import (
	"testing"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/reissue"
)

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
