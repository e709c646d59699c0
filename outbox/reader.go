package outbox

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
)

// Config says what to read.
type Config struct {
	ConnString string
	// AppName is the session's application_name.
	AppName string
	// Publications decide about columns and rows, as on the stream. Those that do not
	// exist decide nothing.
	Publications []string
	Router       router.Config
}

// Reader reads the sources' tables over an SQL session of its own. It is for one
// goroutine. Errors are *operr.Error.
type Reader struct {
	conn   *pgx.Conn
	cfg    Config
	router *router.Router
	tables []*table
	// commitTimes says that track_commit_timestamp is on.
	commitTimes bool
	// snapshot is the exported snapshot that is read at; "": each call's own.
	snapshot string
	// held is the transaction of Hold.
	held pgx.Tx
}

// Open connects and looks at the tables. A mapping that does not fit its table is an error.
func Open(ctx context.Context, cfg Config) (*Reader, error) {
	rt, err := router.New(cfg.Router)
	if err != nil {
		return nil, &operr.Error{Class: operr.Config, Op: "read the mapping", Err: err, Hint: "postrider config check"}
	}
	conn, err := replication.ConnectSQL(ctx, cfg.ConnString, cfg.AppName)
	if err != nil {
		return nil, err
	}
	r := &Reader{conn: conn, cfg: cfg, router: rt}
	if err := r.look(ctx); err != nil {
		r.Close(ctx)
		return nil, err
	}
	return r, nil
}

// Close ends the session.
func (r *Reader) Close(ctx context.Context) { replication.CloseSQL(ctx, r.conn) }

// sessionSQL: a role's time-outs are not meant for reads of a whole table, rows that a
// policy hides from the role would be missing without a word, and the simple protocol
// wants its strings to be standard.
const sessionSQL = `SELECT set_config('statement_timeout', '0', false), set_config('lock_timeout', '0', false), set_config('row_security', 'off', false),
	set_config('standard_conforming_strings', 'on', false)`

func (r *Reader) look(ctx context.Context) error {
	if _, err := r.conn.Exec(ctx, sessionSQL); err != nil {
		return sqlError("prepare", "the session", err)
	}
	var tracked string
	if err := r.conn.QueryRow(ctx, `SELECT current_setting('track_commit_timestamp')`).Scan(&tracked); err != nil {
		return sqlError("read", "track_commit_timestamp", err)
	}
	r.commitTimes = tracked == "on"
	pubs, err := replication.ReadPublications(ctx, r.conn, r.cfg.Publications)
	if err != nil {
		return err
	}
	var problems []error
	for i := range r.cfg.Router.Sources {
		t, err := r.lookAt(ctx, &r.cfg.Router.Sources[i], pubs)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		r.tables = append(r.tables, t)
	}
	return errors.Join(problems...)
}

// Conn is the session, for what belongs into the same one. It is idle between calls,
// but for the transaction of Hold.
func (r *Reader) Conn() *pgx.Conn { return r.conn }

// sqlError puts an error of the session into an operator's words. An operr.Error passes.
func sqlError(op, subject string, err error) error {
	var known *operr.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	e := &operr.Error{Class: operr.Postgres, Op: op, Subject: subject, Err: err}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		e.Transient = !errors.Is(err, context.Canceled)
		return e
	}
	switch pg.Code {
	case "42501": // insufficient_privilege; also: row security would hide rows
		e.Hint = "the grants that postrider setup --print shows for the running role, which needs SELECT on the outbox tables (and BYPASSRLS where they have row security)"
	case "42P01", "3F000", "42703": // undefined_table, invalid_schema_name, undefined_column
		e.Hint = "postrider setup, which creates or updates the schema postrider"
	}
	return e
}
