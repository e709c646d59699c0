package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// TestRecoverPrepared: a transaction that was prepared before the last tick-off and committed after
// the slot was lost is found by the snapshot alone (rule 4, trap 28). While one is prepared no
// slot can be made: it is named, and nothing is lost by trying. The server does not keep the times
// of commits, which is its default.
func TestRecoverPrepared(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t, devstack.PostgresOptions{Settings: map[string]string{"max_prepared_transactions": "5", "track_commit_timestamp": "off"}})
	f := newFixture(t, testkit.NewDB(t, server.DSN()), testkit.Kafka(t))
	f.createTopic("order", 1, nil)
	f.series("order", "a", 1, 5)
	f.quietRelay()
	conn := f.db.Conn(t)
	exec := func(sql string) {
		t.Helper()
		_, err := conn.Exec(context.Background(), sql)
		must(t, err)
	}
	exec("BEGIN; INSERT INTO outbox(aggregate_type, aggregate_id, payload) VALUES ('order', 'b', '1'); SAVEPOINT s; INSERT INTO outbox(aggregate_type, aggregate_id, payload) VALUES ('order', 'b', '2'); PREPARE TRANSACTION 'held'")
	f.series("order", "a", 6, 9)
	f.ran()
	f.db.Exec(t, fmt.Sprintf("UPDATE postrider.checkpoint SET idle = false; SELECT pg_drop_replication_slot('%s')", f.db.Slot))
	f.series("order", "a", 10, 12)
	f.refusedRun("does not exist")
	if r := f.recover("--yes", "--lock-timeout", "1s"); r.code != operr.Slot.ExitCode() || !strings.Contains(r.stderr, `prepared transaction "held"`) {
		t.Errorf("%d: %s", r.code, r.stderr)
	}
	exec("COMMIT PREPARED 'held'")
	if done := f.recover("--resume"); done.code != 0 || done.Published != 5 {
		t.Errorf("%d, %d published: %s", done.code, done.Published, done.stderr)
	}
	f.ran()
	if copies, _ := f.requireWhole(f.topic("order"), map[string]int{"a": 12, "b": 2}); copies != 0 {
		t.Errorf("%d copies", copies)
	}
	f.requireIDs(f.topic("order"))
}
