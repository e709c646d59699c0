package backfill

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/reissue"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// rule 6: ids of two tables are nobody's but their own. A row that was updated since the slot's
// birth is not taken for one of the stream because another table's row has its id.
func TestUpdatedRowOfOneOfTwoTables(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "1 a 1", "2 a 2")
	second := f.broker.NewTopic(t, 1, nil)
	f.db.Exec(t, "CREATE TABLE second(id text, key text, payload jsonb); ALTER PUBLICATION "+f.db.Publication+" ADD TABLE second")
	source := f.cfg.Router.Sources[0]
	source.Table, source.Routes = "second", []router.Route{{Topic: second}}
	f.cfg.Router.Sources = append(f.cfg.Router.Sources, source)
	f.setup()
	f.db.Exec(t, "UPDATE outbox SET done_at = now(); INSERT INTO second VALUES ('1', 'a', '3')")

	out, err := f.start()
	must(t, err)
	if out.Total != 2 || out.Changed != 2 {
		t.Errorf("%+v", out)
	}
	must(t, f.run())
	f.requireTopic("+1 1", "+2 2")
}

// Rows that were deleted while it worked are gone, however many they are, and hold up nobody.
func TestManyRowsAreGone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.db.Exec(t, fmt.Sprintf("INSERT INTO outbox SELECT i, 'k', to_jsonb(i) FROM generate_series(1, %d) i", mostNamed+10))
	f.setup()
	out, err := f.start(func(c *Config) {
		c.Say = func(format string, _ ...any) {
			if strings.HasPrefix(format, "publishing") {
				f.db.Exec(t, "DELETE FROM outbox")
			}
		}
	})
	if operr.ClassOf(err) != operr.Halted || out.State != reissue.Done || out.Refused != mostNamed+10 {
		t.Errorf("%v, %+v", err, out)
	}
	must(t, f.run())
}

// What was published between the first look and the task, by a relay that knows nothing of the
// lock, is seen: the rows from before the slot would come behind newer events of their keys.
func TestPublishedMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "1 a 1")
	f.setup()
	lock := f.db.Conn(t)
	_, err := lock.Exec(t.Context(), "BEGIN; LOCK TABLE postrider.task IN EXCLUSIVE MODE")
	must(t, err)
	ended := make(chan error, 1)
	b := f.open()
	go func() {
		_, err := b.Start(context.WithoutCancel(t.Context()))
		ended <- err
	}()
	testkit.EventuallyTrue(t, patience, "the backfill does not make its task", func() bool {
		return f.scalar("SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'INSERT INTO postrider.task %' AND wait_event_type = 'Lock'") == "1"
	})
	f.db.Exec(t, "UPDATE postrider.checkpoint SET events_published = 1")
	_, err = lock.Exec(t.Context(), "COMMIT")
	must(t, err)
	requireRefused(t, <-ended, operr.Slot, "replay", "published 1 events")
	f.requireTopic()
	b.Close(t.Context())
	must(t, f.run()) // nothing is left open
}
