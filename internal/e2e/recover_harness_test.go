package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/recovery"
	"github.com/postrider/postrider/internal/testkit"
)

// recovered is what a run of `postrider recover --json` gave.
type recovered struct {
	recovery.Report
	code   int
	stderr string
}

// recover runs the command to its end.
func (f *fixture) recover(args ...string) recovered {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, built(f.t), append([]string{"recover", "--json", "--config", f.yaml("")}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		f.t.Fatalf("recover %v: %v", args, err)
	}
	r := recovered{code: cmd.ProcessState.ExitCode(), stderr: errs.String()}
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), &r.Report); err != nil {
			f.t.Fatalf("recover %v printed what is no report: %v\n%s", args, err, out.String())
		}
	}
	f.t.Logf("recover %v: exit code %d, case %s, %s %s\n%s", args, r.code, r.Diagnosis.Case, r.Diagnosis.Method, r.Diagnosis.Scope, r.stderr)
	return r
}

// mustRecover shows what is true first, which must change nothing, and then recovers.
func (f *fixture) mustRecover(want recovery.Case, args ...string) (dry, done recovered) {
	f.t.Helper()
	before := f.slotRow() + f.checkpointRow()
	var dryArgs []string
	for _, a := range args {
		if a != "--yes" {
			dryArgs = append(dryArgs, a)
		}
	}
	dry = f.recover(dryArgs...)
	if after := f.slotRow() + f.checkpointRow(); dry.code != 0 || !dry.DryRun || before != after {
		f.t.Fatalf("the dry run ended with %d and changed %s to %s; it said %s", dry.code, before, after, dry.stderr)
	}
	if dry.Diagnosis.Case != want || !dry.Diagnosis.Needed {
		f.t.Fatalf("diagnosis %+v, want %s", dry.Diagnosis, want)
	}
	done = f.recover(append([]string{"--yes"}, args...)...)
	if done.code != 0 || done.Position == "" {
		f.t.Fatalf("recover ended with %d: %s", done.code, done.stderr)
	}
	if dry.Comparison.ToPublish != done.Published+done.Parked {
		f.t.Errorf("the dry run said %d events, %d were published and %d parked", dry.Comparison.ToPublish, done.Published, done.Parked)
	}
	if n := f.scalar("SELECT count(*)::text FROM postrider.audit WHERE action = 'recover.done'"); n == "0" {
		f.t.Error("the recovery is not in the audit")
	}
	return dry, done
}

func (f *fixture) checkpointRow() string {
	f.t.Helper()
	return f.scalar("SELECT coalesce((SELECT c::text FROM postrider.checkpoint c), 'none')")
}

// refusedRun wants `run` to refuse with exit code 5, and to name recover.
func (f *fixture) refusedRun(texts ...string) {
	f.t.Helper()
	said := requireExit(f.t, spawn(f.t, "run", "--until-lsn", "now", "--config", f.yaml("")), operr.Slot.ExitCode(), texts...)
	if _, try, _ := strings.Cut(said, "\nTry: "); !strings.Contains(try, "postrider recover") {
		f.t.Errorf("the remedy does not name recover: %s", said)
	}
}

// ran wants `run` to start, and to publish all that is committed now.
func (f *fixture) ran() {
	f.t.Helper()
	requireDone(f.t, spawn(f.t, "run", "--until-lsn", "now", "--config", f.yaml("")))
}

// requireWhole fails the test unless the first occurrences of each key are 1 to n in this
// order, byte for byte; it gives the number of copies on top, and of records that are
// marked as recovered.
func (f *fixture) requireWhole(topic string, want map[string]int) (copies, marked int) {
	f.t.Helper()
	seen := map[string]bool{}
	got := map[string][]string{}
	for _, r := range f.broker.ReadAll(f.t, topic) {
		id, _ := r.Header("id")
		if _, ok := r.Header("postrider-recovered"); ok {
			marked++
		}
		if seen[string(id)] {
			copies++
			continue
		}
		seen[string(id)] = true
		got[string(r.Key)] = append(got[string(r.Key)], string(r.Value))
	}
	for key, n := range want {
		var all []string
		for i := 1; i <= n; i++ {
			all = append(all, fmt.Sprint(i))
		}
		if a, b := strings.Join(got[key], " "), strings.Join(all, " "); a != b {
			f.t.Errorf("key %s has %s, want 1 to %d", key, shorten(a), n)
		}
	}
	return copies, marked
}

func shorten(s string) string {
	if len(s) > 300 {
		return s[:300] + "…"
	}
	return s
}

// requireIDs fails the test unless each row of the table is in the topic, under its own id
// and with its own bytes.
func (f *fixture) requireIDs(topic string) {
	f.t.Helper()
	values := map[string]string{}
	for _, r := range f.broker.ReadAll(f.t, topic) {
		id, _ := r.Header("id")
		values[string(id)] = string(r.Key) + " " + string(r.Value)
	}
	rows, err := f.session(context.Background()).Query(context.Background(), "SELECT id::text, aggregate_id || ' ' || payload::text FROM outbox")
	must(f.t, err)
	defer rows.Close()
	n := 0
	for rows.Next() {
		var id, want string
		must(f.t, rows.Scan(&id, &want))
		if values[id] != want {
			f.t.Errorf("event %s is %q in the topic, want %q", id, values[id], want)
		}
		n++
	}
	must(f.t, rows.Err())
	f.t.Logf("%d rows, %d ids in the topic", n, len(values))
	f.agreed()
}

// agreed wants `reconcile` to find nothing, over the whole table.
func (f *fixture) agreed() {
	f.t.Helper()
	cmd := exec.Command(built(f.t), "reconcile", "--since", "all", "--config", f.yaml(""))
	if out, err := cmd.CombinedOutput(); err != nil {
		f.t.Errorf("reconcile: %v\n%s", err, out)
	}
}

// backup takes a base backup of the server.
func backup(t *testing.T, server *devstack.Postgres, standby bool) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "postrider-backup-") //nolint:usetesting // PostgreSQL runs as another user where we are root, and does not get into t.TempDir
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	must(t, server.BaseBackup(ctx, dir, standby))
	return dir
}

// pgDump is the path of the server's own pg_dump.
func pgDump(t *testing.T, server *devstack.Postgres) string {
	t.Helper()
	path := filepath.Join(server.BinDir, "pg_dump")
	if _, err := exec.LookPath(path); err != nil {
		t.Skipf("no pg_dump beside PostgreSQL %s", server.Version)
	}
	return path
}

// restored starts a server on a backup, and gives the fixture as it is there.
func (f *fixture) restored(dir string, settings map[string]string) (*fixture, *devstack.Postgres) {
	f.t.Helper()
	return f.restoredOn("", dir, settings)
}

// restoredOn is restored for a server of a version.
func (f *fixture) restoredOn(version, dir string, settings map[string]string) (*fixture, *devstack.Postgres) {
	f.t.Helper()
	server := testkit.PrivatePostgres(f.t, devstack.PostgresOptions{Version: version, Dir: dir, Settings: settings})
	return f.on(server), server
}

// on gives the fixture on another server, whose database has the same name.
func (f *fixture) on(server *devstack.Postgres) *fixture {
	f.t.Helper()
	db := *f.db
	db.DSN = server.DatabaseDSN(f.db.Name)
	moved := *f
	moved.db, moved.looks = &db, nil
	moved.cfg = moved.config()
	return &moved
}

// quietRelay runs the real relay until all that is committed now is published and ticked off,
// and ends it.
func (f *fixture) quietRelay() {
	f.t.Helper()
	next := f.scalar("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
	run := spawn(f.t, "run", "--config", f.yaml(""))
	f.awaitConfirmed(f.walEnd())
	testkit.Eventually(f.t, patience, func() error {
		if s := f.scalar("SELECT coalesce((SELECT snapshot::text FROM postrider.checkpoint), '')"); s != "" {
			if f.scalar("SELECT (pg_snapshot_xmin('"+s+"') >= '"+next+"'::xid8)::text") == "true" {
				return nil
			}
		}
		return errors.New("no snapshot is ticked off")
	})
	if code := run.terminate(); code != 0 {
		f.t.Fatalf("exit code %d: %s", code, run.said())
	}
}

// lines counts the lines of a file.
func lines(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	var all []string
	for line := range strings.Lines(string(text)) {
		all = append(all, strings.TrimSpace(line))
	}
	return all
}

// hold makes a row trigger on a table that waits while the returned function was not
// called. when is SQL over NEW.
func (f *fixture) hold(table, event, when string) (release func(), waiting func()) {
	f.t.Helper()
	const key = 4711
	name := "hold_" + strings.ReplaceAll(table, ".", "_")
	f.db.Exec(f.t, fmt.Sprintf(`CREATE OR REPLACE FUNCTION wait_here() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_advisory_xact_lock_shared(%d); RETURN NEW; END $$;
		CREATE TRIGGER %s BEFORE %s ON %s FOR EACH ROW WHEN (%s) EXECUTE FUNCTION wait_here()`, key, name, event, table, when))
	conn := f.db.Conn(f.t)
	_, err := conn.Exec(context.Background(), fmt.Sprintf("SELECT pg_advisory_lock(%d)", key))
	must(f.t, err)
	release = func() {
		// First: who waits holds a lock on the table.
		_, err := conn.Exec(context.Background(), fmt.Sprintf("SELECT pg_advisory_unlock(%d)", key))
		must(f.t, err)
		f.db.Exec(f.t, "DROP TRIGGER "+name+" ON "+table)
	}
	waiting = func() {
		f.t.Helper()
		testkit.EventuallyTrue(f.t, patience, "nobody waits for the test", func() bool {
			return f.scalar(fmt.Sprintf("SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND objid = %d AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())", key)) != "0"
		})
	}
	return release, waiting
}

// settle waits until a killed process's sessions are gone from the server.
func (f *fixture) gone(app string) {
	f.t.Helper()
	testkit.Eventually(f.t, patience, func() error {
		if n := f.scalar("SELECT count(*)::text FROM pg_stat_activity WHERE application_name LIKE '" + app + "%'"); n != "0" {
			return fmt.Errorf("%s sessions of %q are left", n, app)
		}
		return nil
	})
}

// took is for figures in the log.
func took(t *testing.T, what string, began time.Time) { t.Logf("%s took %s", what, time.Since(began)) }
