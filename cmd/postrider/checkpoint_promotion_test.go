//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/peek"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/internal/verify"
)

// promote makes the server a standby and promotes it: it goes on on a new timeline.
func promote(t *testing.T, srv *devstack.Postgres, db *testkit.DB) {
	t.Helper()
	if err := srv.Halt(devstack.Fast); err != nil {
		t.Fatal(err)
	}
	signal := filepath.Join(srv.DataDir(), "standby.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	chownLike(t, signal, srv.DataDir())
	if err := srv.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Exec(t, "SELECT pg_promote()")
	testkit.EventuallyTrue(t, patience, "it is a standby still", func() bool {
		conn, err := pgx.Connect(t.Context(), db.DSN)
		if err != nil {
			return false
		}
		defer conn.Close(t.Context())
		var recovery bool
		return conn.QueryRow(t.Context(), "SELECT pg_is_in_recovery()").Scan(&recovery) == nil && !recovery
	})
}

// rule 2: after a promotion the commands go by the timeline history. What counts of a
// position past the fork is the fork; an advance binds the position to the new timeline and
// drops the snapshot, which is of other transactions.
func TestPositionAfterAPromotion(t *testing.T) {
	t.Parallel()
	srv := testkit.PrivatePostgres(t, devstack.PostgresOptions{})
	s := newStackOn(t, testkit.NewDB(t, srv.DSN()), "")
	s.insertKey(t, "k", `{"n": 1}`)
	s.drained(t)
	s.insertKey(t, "k", `{"n": 2}`)
	promote(t, srv, s.db)
	timeline := func(r verify.Report) string {
		for _, c := range r.Checks {
			if c.Name == "timeline" {
				return c.Verdict + " " + c.Detail
			}
		}
		return "none"
	}
	if got := timeline(told[verify.Report](t, s, exitDone, "verify")); !strings.HasPrefix(got, checkpoint.VerdictOK+" 2, promoted from 1") {
		t.Errorf("timeline: %s", got)
	}
	if r := told[peek.Report](t, s, exitDone, "peek"); r.Events != 1 || r.Doubt != "" {
		t.Errorf("%+v", r)
	}
	// The row as a relay left it that was ahead of the standby.
	s.db.Exec(t, "UPDATE postrider.checkpoint SET confirmed_lsn = pg_current_wal_insert_lsn() + 1000, snapshot = pg_current_snapshot()")
	s.insertKey(t, "k", `{"n": 3}`)
	if r := told[peek.Report](t, s, exitDone, "peek"); r.Events != 1 || r.From.String() == scalar(t, s.db, "SELECT confirmed_lsn::text FROM postrider.checkpoint") {
		t.Errorf("%+v", r)
	}
	s.checkpoint(t, "verify").expect(t, exitDone)
	got := told[advanceResult](t, s, exitDone, "advance", "--now", "--yes", "--reason", "a test")
	if got.Advanced == nil || got.Skipped.Events != 1 {
		t.Errorf("%+v", got)
	}
	if row := scalar(t, s.db, "SELECT concat_ws(' ', timeline, confirmed_lsn, coalesce(snapshot::text, 'none')) FROM postrider.checkpoint"); row != "2 "+got.Target.String()+" none" {
		t.Errorf("row: %s, target %s", row, got.Target)
	}
	s.insertKey(t, "k", `{"n": 4}`)
	s.drained(t)
	var values []string
	for _, r := range s.broker.ReadAll(t, "events") {
		values = append(values, string(r.Value))
	}
	if got := strings.Join(values, " "); got != `{"n": 1} {"n": 4}` {
		t.Errorf("published %s", got)
	}
}
