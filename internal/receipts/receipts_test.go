package receipts

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/publisher"
)

const patience = 60 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a Writer behind a publisher.
type rig struct {
	t      *testing.T
	db     *testkit.DB
	w      *Writer
	p      *publisher.Publisher
	topic  string
	broker *testkit.Broker
	sent   int
	// unplaced makes the publisher's answer one without an offset.
	unplaced atomic.Bool

	mu      sync.Mutex
	written int
	dropped map[string]int
}

func newRig(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, db: testkit.Postgres(t), broker: testkit.Kfake(t, devstack.KfakeOptions{}).Broker, dropped: map[string]int{}}
	if _, err := migrations.Apply(t.Context(), r.db.DSN); err != nil {
		t.Fatal(err)
	}
	r.topic = r.broker.NewTopic(t, 3, nil)
	cfg := Config{
		ConnString: r.db.DSN, AppName: "test", Publisher: "orders", Keep: time.Hour, Every: 20 * time.Millisecond,
		Written: func(n int) { r.mu.Lock(); r.written += n; r.mu.Unlock() },
		Dropped: func(reason string, n int) { r.mu.Lock(); r.dropped[reason] += n; r.mu.Unlock() },
	}
	if change != nil {
		change(&cfg)
	}
	r.w = Start(cfg)
	t.Cleanup(func() { r.close(patience) })
	var err error
	if r.p, err = publisher.New(publisher.Config{Brokers: r.broker.Bootstrap(), OnDelivered: r.take}); err != nil {
		t.Fatal(err)
	}
	r.p.Start(context.Background())
	t.Cleanup(func() { _ = r.p.Close() })
	return r
}

func (r *rig) take(d *publisher.Delivery) {
	if r.unplaced.Load() {
		d.Base = -1
	}
	r.w.Take(d)
}

// send publishes n further events, and waits for their acknowledgement.
func (r *rig) send(n int) {
	r.t.Helper()
	for range n {
		id := fmt.Sprintf("e%d", r.sent)
		m := event.Message{
			Topic: r.topic, EventID: []byte(id), Key: []byte(id), Value: []byte("{}"), Partition: event.NoPartition,
			Headers:         []event.Header{{Name: "id", Value: []byte(id)}},
			TimestampMillis: time.Now().UnixMilli(), Position: event.Position{Commit: event.LSN(r.sent), Index: 7},
		}
		if err := r.p.Append(r.ctx(), &m, 1); err != nil {
			r.t.Fatal(err)
		}
		r.sent++
	}
	r.p.Flush()
	if err := r.p.Drain(r.ctx()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	r.t.Cleanup(cancel)
	return ctx
}

func (r *rig) close(within time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	r.w.Close(ctx)
}

// count gives what was told.
func (r *rig) count(reason string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if reason == "" {
		return r.written
	}
	return r.dropped[reason]
}

func (r *rig) await(what string, reason string, n int) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		if have := r.count(reason); have != n {
			return fmt.Errorf("%s: %d, want %d", what, have, n)
		}
		return nil
	})
}

// Find gives what was written, also by the running role, which may neither change a
// receipt nor more than it needs. An event that did not come from the stream has no position.
func TestFind(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	role := r.db.Name + "_relay"
	r.db.Exec(t, migrations.GrantsSQL(migrations.Grants{Role: role, Database: r.db.Name}))
	r.db.Exec(t, "ALTER ROLE "+role+" PASSWORD 'x'")
	t.Cleanup(func() { r.db.Exec(t, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	r.close(patience)
	r.w = Start(Config{ConnString: r.db.As(role, "x"), Publisher: "orders", Keep: time.Hour, Every: time.Millisecond, Written: r.w.cfg.Written})
	r.send(40)
	r.await("written", "", 40)
	// An answer to a COPY was lost: the same once more. A replay: another place.
	r.db.Exec(t, `INSERT INTO postrider.receipt SELECT * FROM postrider.receipt WHERE event_id = 'e3';
		INSERT INTO postrider.receipt VALUES ('orders', 'e3', 'elsewhere', 1, 9, now() + '1 min'), ('other', 'e3', 't', 0, 0, now())`)
	conn, err := pgx.Connect(t.Context(), r.db.As(role, "x"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	list, err := Find(t.Context(), conn, "orders", "e3")
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	if got := list[0]; got.Topic != r.topic || got.Position == nil || *got.Position != (event.Position{Commit: 3, Index: 7}) || time.Since(got.AckedAt).Abs() > patience {
		t.Errorf("%+v", got)
	}
	for _, rec := range r.broker.ReadAll(t, r.topic) {
		if id, _ := rec.Header("id"); string(id) == "e3" && (rec.Partition != list[0].Partition || rec.Offset != list[0].Offset) {
			t.Errorf("it stands at %d/%d, the receipt says %+v", rec.Partition, rec.Offset, list[0])
		}
	}
	if got := list[1]; got.Topic != "elsewhere" || got.Partition != 1 || got.Offset != 9 || got.Position != nil {
		t.Errorf("%+v", got)
	}
	if list, err := Find(t.Context(), conn, "orders", "e0"); err != nil || len(list) != 1 || list[0].Position != nil {
		t.Errorf("no commit position: %+v, %v", list, err)
	}
	if _, err := conn.Exec(t.Context(), "UPDATE postrider.receipt SET kafka_offset = 0"); err == nil {
		t.Error("the running role may change receipts")
	}
	r.db.Exec(t, "UPDATE postrider.receipt SET acked_at = acked_at - interval '2 h'")
	r.w.Prune()
	testkit.EventuallyTrue(t, patience, "receipts are not pruned", func() bool {
		list, err := Find(t.Context(), conn, "orders", "e5")
		return err == nil && len(list) == 0
	})
	r.db.Exec(t, "DROP TABLE postrider.receipt")
	if list, err := Find(t.Context(), conn, "orders", "e3"); err != nil || len(list) != 0 {
		t.Errorf("without the table: %v, %v", list, err)
	}
}

// While PostgreSQL cannot be reached the buffer fills; what does not fit is dropped, what is
// there is written later, and each event is counted once.
func TestBufferIsBounded(t *testing.T) {
	t.Parallel()
	var proxy *testkit.TCPProxy
	r := newRig(t, func(cfg *Config) {
		proxy = before(t, cfg)
		proxy.Refuse(true)
		cfg.Buffer = 20 << 10
	})
	for range 30 {
		r.send(100)
	}
	full := r.count(Full)
	if full == 0 || full == 3000 {
		t.Errorf("%d of 3000 were dropped", full)
	}
	proxy.Refuse(false)
	r.await("written", "", 3000-full)
	if n := r.rows(); n != 3000-full {
		t.Errorf("%d rows, %d were written", n, 3000-full)
	}
	// The session breaks.
	proxy.Cut()
	r.send(100)
	r.await("written after a cut", "", 3100-full)
	// There is no time to wait for it any more.
	proxy.Refuse(true)
	proxy.Cut()
	r.send(50)
	r.close(time.Millisecond)
	r.send(25)
	if n := r.count(Stopped); n != 75 {
		t.Errorf("%d dropped at the stop", n)
	}
	if w, d := r.w.Counts(); int(w) != 3100-full || int(d) != full+75 {
		t.Errorf("counts %d %d", w, d)
	}
}

// before puts a proxy between the Writer and its server.
func before(t *testing.T, cfg *Config) *testkit.TCPProxy {
	t.Helper()
	u, err := url.Parse(cfg.ConnString)
	if err != nil {
		t.Fatal(err)
	}
	proxy := testkit.Proxy(t, u.Host)
	u.Host = proxy.Addr()
	cfg.ConnString = u.String()
	return proxy
}

// A server that says nothing holds up no acknowledgement: each wait for it would take its
// whole time-out.
func TestNobodyWaitsForTheServer(t *testing.T) {
	t.Parallel()
	var proxy *testkit.TCPProxy
	r := newRig(t, func(cfg *Config) {
		proxy = before(t, cfg)
		proxy.Pause(testkit.Answers)
	})
	whole := r.ctx()
	for range 20 {
		r.send(1)
		if whole.Err() != nil {
			t.Fatal("acknowledgements wait for the server")
		}
	}
	proxy.Resume(testkit.Answers)
	r.await("written", "", 20)
}

// What the server refuses is dropped; the next is tried again.
func TestRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.db.Exec(t, "ALTER TABLE postrider.receipt RENAME TO away")
	r.send(10)
	r.await("refused", Refused, 10)
	r.db.Exec(t, "ALTER TABLE postrider.away RENAME TO receipt")
	r.send(10)
	r.await("written", "", 10)
	// An offset that nobody knows is no receipt.
	r.unplaced.Store(true)
	r.send(3)
	if n := r.count(NoOffset); n != 3 {
		t.Errorf("%d without an offset", n)
	}
}

// Close writes what waits.
func TestCloseWritesTheLast(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(cfg *Config) { cfg.Every = time.Hour })
	r.send(500)
	if n := r.count(""); n != 0 {
		t.Errorf("%d are written already", n)
	}
	r.close(patience)
	if n := r.rows(); n != 500 || r.count("") != 500 {
		t.Errorf("%d rows, %d were written", n, r.count(""))
	}
	var off *Writer
	off.Close(t.Context())
}

// Half a buffer does not wait for the second.
func TestHalfABufferIsWrittenAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(cfg *Config) { cfg.Every, cfg.Buffer = time.Hour, 64<<10 })
	for range 40 {
		r.send(50)
	}
	testkit.EventuallyTrue(t, patience, "nothing is written", func() bool { return r.count("") > 0 })
}

func (r *rig) rows() (n int) {
	r.t.Helper()
	conn := r.db.Conn(r.t)
	if err := conn.QueryRow(r.ctx(), "SELECT count(*) FROM postrider.receipt").Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}
