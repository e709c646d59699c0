package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/testkit"
)

// shadowing is `run --shadow` that goes on.
type shadowing struct {
	f           *fixture
	cmd         *exec.Cmd
	out, stderr bytes.Buffer
	exited      chan struct{}
}

func (f *fixture) startShadow(args ...string) *shadowing {
	f.t.Helper()
	s := &shadowing{f: f, exited: make(chan struct{})}
	s.cmd = exec.Command(built(f.t), append([]string{"run", "--shadow", "--config", f.yaml("")}, args...)...)
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(f.t, s.cmd.Start())
	go func() {
		_ = s.cmd.Wait()
		close(s.exited)
	}()
	f.t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.exited
	})
	return s
}

func (s *shadowing) interrupt() { must(s.f.t, s.cmd.Process.Signal(os.Interrupt)) }

// end waits for its end and gives the exit code.
func (s *shadowing) end() int {
	s.f.t.Helper()
	select {
	case <-s.exited:
	case <-time.After(3 * patience):
		s.f.t.Fatal("it does not end")
	}
	return s.cmd.ProcessState.ExitCode()
}

func (s *shadowing) over() bool {
	select {
	case <-s.exited:
		return true
	default:
		return false
	}
}

const shadowSlots = "SELECT count(*)::text FROM pg_replication_slots WHERE database = current_database() AND slot_name LIKE 'postrider_copy_%'"

// awaitSlots waits until it has so many slots.
func (s *shadowing) awaitSlots(n string) { s.await(n, shadowSlots) }

// awaitBegun waits until its slot is ready: that waits for transactions of all databases.
func (s *shadowing) awaitBegun() { s.await("1", shadowSlots+" AND confirmed_flush_lsn IS NOT NULL") }

func (s *shadowing) await(n, sql string) {
	s.f.t.Helper()
	testkit.Eventually(s.f.t, patience, func() error {
		if s.over() {
			s.f.t.Fatalf("it has ended: %s%s", s.out.String(), s.stderr.String())
		}
		if got := s.f.scalar(sql); got != n {
			return fmt.Errorf("%s slots, want %s", got, n)
		}
		return nil
	})
}

func shadowed(t *testing.T) *fixture {
	t.Helper()
	f := polled(t)
	f.createTopic("order", 3, nil)
	f.db.Exec(t, fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE outbox WITH (publish = 'insert')", quoted(f.db.Publication)))
	return f
}

// The other publisher is far behind when the shadow begins. Its records of rows from before are told as such, all of them,
// and those of the rows since are compared. Ctrl-C ends it with its report.
func TestShadowOfAPublisherThatIsBehind(t *testing.T) {
	t.Parallel()
	f := shadowed(t)
	const behind = 12_000
	f.db.Exec(t, fmt.Sprintf("INSERT INTO outbox(aggregate_type, aggregate_id, payload) SELECT 'order', 'old' || i %% 50, to_jsonb(i) FROM generate_series(1, %d) i", behind))
	s := f.startShadow("--json")
	s.awaitBegun()
	load := f.startWriters(2, "order", 10*time.Millisecond)
	p := f.startPoller("true")
	testkit.EventuallyTrue(t, 2*patience, "the poller does not get on", func() bool {
		return p.published.Load() > behind+500
	})
	load.end()
	testkit.EventuallyTrue(t, patience, "the poller does not end", func() bool {
		return p.published.Load() == behind+load.rows.Load()
	})
	s.interrupt()
	code := s.end()
	var report struct {
		Streamed, Compared, Equal, Missing, Before, Unexpected, Late int64
	}
	if err := json.Unmarshal(s.out.Bytes(), &report); err != nil {
		t.Fatalf("%v\n%s%s", err, s.out.String(), s.stderr.String())
	}
	if code != 0 || report.Compared != load.rows.Load() || report.Equal != report.Streamed || report.Before != behind {
		t.Errorf("exit code %d, %d rows since:\n%s", code, load.rows.Load(), s.out.String())
	}
}

// While it waits for the last records the shadow holds no slot any more, and Ctrl-C ends the wait with the report.
func TestShadowHoldsNoWALWhileItWaits(t *testing.T) {
	t.Parallel()
	f := shadowed(t)
	s := f.startShadow("--for", "3s", "--patience", "10m")
	s.awaitBegun()
	f.insert("order", "k", "1") // and there is no publisher
	s.awaitSlots("0")
	s.interrupt()
	if code := s.end(); code != 8 || !strings.Contains(s.out.String(), "and 1 more at the end") {
		t.Errorf("exit code %d:\n%s%s", code, s.out.String(), s.stderr.String())
	}
}

// A slot waits for open transactions. Ctrl-C ends that, and nothing is left.
func TestShadowIsEndedBeforeItBegins(t *testing.T) {
	t.Parallel()
	f := shadowed(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, f.db.DSN)
	must(t, err)
	defer conn.Close(ctx)
	tx, err := conn.Begin(ctx)
	must(t, err)
	defer tx.Rollback(ctx) //nolint:errcheck // it has written nothing that counts
	_, err = tx.Exec(ctx, "SELECT pg_current_xact_id()")
	must(t, err)
	s := f.startShadow()
	s.awaitSlots("1") // it is there, and not ready
	s.interrupt()
	if code := s.end(); code != 7 || !strings.Contains(s.stderr.String(), "before anything was compared") {
		t.Errorf("exit code %d:\n%s%s", code, s.out.String(), s.stderr.String())
	}
	testkit.EventuallyTrue(t, patience, "a slot is left", func() bool { return f.scalar(shadowSlots) == "0" })
}

// What was found in an hour is told although the server ends the shadow's session then.
func TestShadowThatEndsEarlyReports(t *testing.T) {
	t.Parallel()
	f := shadowed(t)
	p := f.startPoller("true")
	s := f.startShadow()
	s.awaitBegun()
	f.insert("order", "k", "1")
	f.awaitRecords(f.topic("order"), 1)
	testkit.EventuallyTrue(t, patience, "it goes on", func() bool {
		f.db.Exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE '%(shadow)'")
		return s.over()
	})
	p.end()
	if code := s.end(); code != 3 || !strings.Contains(s.out.String(), "compared") || !strings.Contains(s.out.String(), "ended early") {
		t.Errorf("exit code %d:\n%s%s", code, s.out.String(), s.stderr.String())
	}
}
