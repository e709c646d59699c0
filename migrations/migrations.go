// Package migrations holds the schema "postrider" as embedded SQL, and the SQL that
// setup writes besides: the default outbox table and the grants of the running role.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/postrider/postrider/internal/operr"
)

// Schema holds everything of ours in the publisher's database.
const Schema = "postrider"

const versionTable = Schema + ".goose_db_version"

// lockID is the advisory lock that concurrent setups queue for: "postride" in ASCII.
const lockID int64 = 0x706f737472696465

//go:embed sql/*.sql
var files embed.FS

// Applied is a migration that Apply has run.
type Applied struct {
	Version int64
	Name    string
}

// Apply brings the schema up to date and says what it ran. It is idempotent, and
// safe when several processes do it at once.
func Apply(ctx context.Context, connString string) ([]Applied, error) {
	db, err := open(connString)
	if err != nil {
		return nil, err
	}
	defer db.Close() //nolint:errcheck // nothing is in flight
	return ApplyDB(ctx, db)
}

// ApplyDB is Apply over a pool of the caller's, which must allow two connections.
func ApplyDB(ctx context.Context, db *sql.DB) (applied []Applied, err error) {
	provider, err := newProvider(db)
	if err != nil {
		return nil, err
	}
	unlock, err := lockSchema(ctx, db)
	if err != nil {
		return nil, failed("lock", err)
	}
	defer func() { err = errors.Join(err, unlock()) }()
	results, err := provider.Up(ctx)
	if err != nil {
		return nil, failed("apply migrations to", err)
	}
	for _, r := range results {
		applied = append(applied, Applied{Version: r.Source.Version, Name: path.Base(r.Source.Path)})
	}
	return applied, nil
}

// Pending names the migrations that the database lacks, and creates nothing.
func Pending(ctx context.Context, connString string) ([]string, error) {
	db, err := open(connString)
	if err != nil {
		return nil, err
	}
	defer db.Close() //nolint:errcheck // nothing is in flight
	done, err := appliedVersions(ctx, db)
	if err != nil {
		return nil, failed("read the migrations of", err)
	}
	provider, err := newProvider(db)
	if err != nil {
		return nil, err
	}
	var pending []string
	for _, source := range provider.ListSources() {
		if !done[source.Version] {
			pending = append(pending, path.Base(source.Path))
		}
	}
	return pending, nil
}

// appliedVersions asks without goose, whose own question creates the version table.
func appliedVersions(ctx context.Context, db *sql.DB) (map[int64]bool, error) {
	done := map[int64]bool{}
	var exists bool
	if err := db.QueryRowContext(ctx, `SELECT to_regclass($1) IS NOT NULL`, versionTable).Scan(&exists); err != nil || !exists {
		return done, err
	}
	rows, err := db.QueryContext(ctx, `SELECT version_id FROM `+versionTable+` WHERE is_applied`)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err says it
	for rows.Next() {
		var version int64
		if err := rows.Scan(&version); err != nil {
			return nil, err
		}
		done[version] = true
	}
	return done, rows.Err()
}

func newProvider(db *sql.DB) (*goose.Provider, error) {
	fsys, err := fs.Sub(files, "sql")
	if err != nil {
		return nil, fmt.Errorf("open embedded migrations: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, fsys,
		goose.WithTableName(versionTable),
		goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("load migrations: %w", err)
	}
	return provider, nil
}

// lockSchema queues behind other setups and creates the schema. goose's own use of
// its locker would come too late: it looks for its version table, in the schema,
// before it takes the lock.
func lockSchema(ctx context.Context, db *sql.DB) (unlock func() error, err error) {
	// A try a second, for five minutes.
	queue, err := lock.NewPostgresSessionLocker(lock.WithLockID(lockID), lock.WithLockTimeout(1, 300))
	if err != nil {
		return nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if err := queue.SessionLock(ctx, conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	unlock = func() error {
		return errors.Join(queue.SessionUnlock(context.WithoutCancel(ctx), conn), conn.Close())
	}
	if err := createSchema(ctx, conn); err != nil {
		return nil, errors.Join(err, unlock())
	}
	return unlock, nil
}

// createSchema asks first: IF NOT EXISTS demands the right to create even where the
// schema exists.
func createSchema(ctx context.Context, conn *sql.Conn) error {
	var exists bool
	if err := conn.QueryRowContext(ctx, `SELECT to_regnamespace($1) IS NOT NULL`, Schema).Scan(&exists); err != nil || exists {
		return err
	}
	_, err := conn.ExecContext(ctx, `CREATE SCHEMA `+Schema)
	return err
}

func open(connString string) (*sql.DB, error) {
	cfg, err := pgx.ParseConfig(connString)
	if err != nil {
		return nil, &operr.Error{Class: operr.Config, Op: "parse", Subject: "the connection string", Err: err, Hint: "correct postgres.host or postgres.dsn"}
	}
	cfg.RuntimeParams["application_name"] = "postrider setup"
	cfg.RuntimeParams["idle_session_timeout"] = "0"
	cfg.RuntimeParams["idle_in_transaction_session_timeout"] = "0"
	return stdlib.OpenDB(*cfg), nil
}

func failed(op string, err error) error {
	e := &operr.Error{Class: operr.Postgres, Op: op, Subject: "schema " + Schema, Err: err}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" {
		e.Hint = "a role that may create schemas in this database, or postrider setup --print, which gives the SQL for one"
	}
	return e
}

// PlainSQL is what Apply does, as SQL for a DBA. It may run more than once, and
// Apply finds nothing left to do after it.
func PlainSQL() (string, error) {
	var b strings.Builder
	b.WriteString("CREATE SCHEMA IF NOT EXISTS " + Schema + ";\n\n")
	b.WriteString(`CREATE TABLE IF NOT EXISTS ` + versionTable + ` (
    id integer PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY,
    version_id bigint NOT NULL,
    is_applied boolean NOT NULL,
    tstamp timestamp NOT NULL DEFAULT now()
);
`)
	writeVersion(&b, 0)
	names, err := fs.Glob(files, "sql/*.sql")
	if err != nil {
		return "", fmt.Errorf("list embedded migrations: %w", err)
	}
	for _, name := range names {
		if err := writeMigration(&b, name); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

func writeMigration(b *strings.Builder, name string) error {
	text, err := files.ReadFile(name)
	if err != nil {
		return fmt.Errorf("read embedded migration: %w", err)
	}
	version, err := goose.NumericComponent(path.Base(name))
	if err != nil {
		return fmt.Errorf("number of migration %s: %w", name, err)
	}
	up, _, _ := strings.Cut(string(text), "-- +goose Down")
	fmt.Fprintf(b, "\n-- %s\n", path.Base(name))
	for line := range strings.Lines(up) {
		if !strings.HasPrefix(line, "-- +goose") {
			b.WriteString(line)
		}
	}
	writeVersion(b, version)
	return nil
}

func writeVersion(b *strings.Builder, version int64) {
	fmt.Fprintf(b, "INSERT INTO %[1]s (version_id, is_applied) SELECT %[2]d, true WHERE NOT EXISTS (SELECT FROM %[1]s WHERE version_id = %[2]d);\n",
		versionTable, version)
}

// Latest is the version of the newest migration that this program knows.
func Latest() (int64, error) {
	names, err := fs.Glob(files, "sql/*.sql")
	if err != nil || len(names) == 0 {
		return 0, fmt.Errorf("list embedded migrations: %w", err)
	}
	return goose.NumericComponent(path.Base(names[len(names)-1]))
}
