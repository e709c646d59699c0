package testkit

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/devstack"
)

// patience bounds each single step that the testkit takes with a server.
const patience = 30 * time.Second

// DB is one test's own database.
type DB struct {
	// DSN connects as superuser, without TLS.
	DSN string
	// Name is the database's name.
	Name string
	// Slot and Publication are names for the test to use, unique on the server.
	// Neither exists yet.
	Slot, Publication string

	server string // a DSN of another database of the server
}

// Postgres makes a database on the shared server. At cleanup its slots are
// dropped, whoever uses them, and then the database.
func Postgres(t testing.TB) *DB {
	t.Helper()
	return NewDB(t, sharedPostgres.need(t, postgresEnv))
}

// NewDB makes a database on the server of dsn, a private one for instance.
func NewDB(t testing.TB, dsn string) *DB {
	t.Helper()
	address, err := url.Parse(dsn)
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	name := Unique(t)
	address.Path = "/" + name
	db := &DB{
		Name: name, Slot: name + "_slot", Publication: name + "_pub", server: dsn,
		DSN: address.String(),
	}
	t.Cleanup(func() { db.drop(t) })
	db.onServer(t, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CREATE DATABASE "+name)
		return err
	})
	return db
}

var notIdentifier = regexp.MustCompile(`[^a-z0-9]+`)

// Unique makes a name from the test's own, of lower-case letters, digits and
// underscores, at most 45 bytes: fit for a database, slot, publication, topic.
func Unique(t testing.TB) string {
	var b [5]byte
	_, _ = rand.Read(b[:]) // never fails
	name := strings.Trim(notIdentifier.ReplaceAllString(strings.ToLower(t.Name()), "_"), "_")
	name = strings.TrimPrefix(name, "test")
	return "t_" + strings.Trim(name[:min(len(name), 30)], "_") + "_" + hex.EncodeToString(b[:])
}

// Conn opens a session as superuser that closes at cleanup.
func (db *DB) Conn(t testing.TB) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, db.DSN)
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = conn.Close(ctx) // the server may be down by now
	})
	return conn
}

// Exec runs statements, separated by semicolons, in a session of their own.
func (db *DB) Exec(t testing.TB, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, db.DSN)
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		t.Fatalf("testkit: %v\nin %s", err, sql)
	}
}

// As gives the DSN of another role, with a password where it is not empty. The
// shared server asks roles other than the superuser for one.
func (db *DB) As(role, password string) string {
	u, err := url.Parse(db.DSN)
	if err != nil {
		return err.Error() // cannot happen: NewDB has parsed it
	}
	u.User = url.User(role)
	if password != "" {
		u.User = url.UserPassword(role, password)
	}
	return u.String()
}

// VersionNum is the server's version as server_version_num has it: 150018.
func (db *DB) VersionNum(t testing.TB) int {
	t.Helper()
	var n int
	db.onServer(t, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&n)
	})
	return n
}

// drop removes the database and its slots. A server that is gone has none.
func (db *DB) drop(t testing.TB) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, db.server)
	if err != nil {
		return
	}
	defer conn.Close(ctx)
	if err := dropSlots(ctx, conn, db.Name); err != nil {
		t.Errorf("testkit: drop the slots of %s: %v", db.Name, err)
	}
	if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+db.Name+" WITH (FORCE)"); err != nil {
		t.Errorf("testkit: drop %s: %v", db.Name, err)
	}
}

// dropSlots drops every slot of a database. A walsender that was told to end
// may hold its slot for some milliseconds more.
func dropSlots(ctx context.Context, conn *pgx.Conn, database string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var left int
		_, err := conn.Exec(ctx, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
			WHERE database = $1 AND active_pid IS NOT NULL`, database)
		if err == nil {
			_, _ = conn.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
				WHERE database = $1 AND NOT active`, database)
			err = conn.QueryRow(ctx, `SELECT count(*) FROM pg_replication_slots WHERE database = $1`, database).Scan(&left)
		}
		if err != nil || left == 0 {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (db *DB) onServer(t testing.TB, f func(context.Context, *pgx.Conn) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, db.server)
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	defer conn.Close(ctx)
	if err := f(ctx, conn); err != nil {
		t.Fatalf("testkit: %v", err)
	}
}

// PrivatePostgres starts a server for one test, which may stop, kill and
// reconfigure it. A failed test shows the end of its log.
func PrivatePostgres(t testing.TB, opts devstack.PostgresOptions) *devstack.Postgres {
	t.Helper()
	p, err := devstack.StartPostgres(context.Background(), opts)
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of PostgreSQL's log:\n%s", tail(p.LogFile(), 4000))
		}
		if err := p.Stop(devstack.Immediate); err != nil {
			t.Errorf("testkit: %v", err)
		}
	})
	return p
}

func tail(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-n):])
}
