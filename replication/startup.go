package replication

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// MinServerVersion is the oldest server_version_num that is supported: 14 brought idle_session_timeout.
const MinServerVersion = 140000

// pin is a session parameter that goes in the start-up packet, where it beats
// whatever the role or the database has set (case C03).
type pin struct{ name, value string }

// outputPins decide how PostgreSQL writes values as text, and so what is
// published. Whoever reads the table by SQL uses the same, or the bytes differ.
var outputPins = []pin{
	{"client_encoding", "UTF8"},
	{"DateStyle", "ISO"},
	{"bytea_output", "hex"},
	{"extra_float_digits", "3"},
	{"IntervalStyle", "postgres"},
	{"TimeZone", "UTC"},
	{"lc_monetary", "C"},
	// regclass, regtype and the like are written by both.
	{"search_path", "pg_catalog"},
	{"quote_all_identifiers", "off"},
}

// sessionPins keep the server from ending a session that waits.
var sessionPins = []pin{
	{"idle_session_timeout", "0"},
	{"idle_in_transaction_session_timeout", "0"},
}

// streamPins are for the replication connection alone. tcp_user_timeout is off
// on the server's side: Linux counts the time that a receiver's window is
// closed, and a full window of ours closes it for as long as a broker is away.
// A dead client is found by wal_sender_timeout, since statuses never stop.
var streamPins = []pin{
	{"statement_timeout", "0"},
	{"lock_timeout", "0"},
	{"tcp_user_timeout", "0"},
}

func applyPins(params map[string]string, pins ...[]pin) {
	for _, list := range pins {
		for _, p := range list {
			// The server takes the last spelling it sees: drop others of the same name.
			for k := range params {
				if strings.EqualFold(k, p.name) {
					delete(params, k)
				}
			}
			params[p.name] = p.value
		}
	}
}

// serverFacts is what a fresh session says about itself.
type serverFacts struct {
	backendPID       uint32
	version          int
	walSenderTimeout time.Duration
	settings         []string // of outputPins, in their order
}

// factsSQL asks by the simple protocol, which a replication connection knows too.
func factsSQL() string {
	sql := "SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('server_version_num')," +
		" (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout')"
	for _, p := range outputPins {
		sql += ", pg_catalog.current_setting('" + p.name + "')"
	}
	return sql
}

func readFacts(ctx context.Context, conn *pgconn.PgConn) (serverFacts, error) {
	results, err := conn.Exec(ctx, factsSQL()).ReadAll()
	if err != nil {
		return serverFacts{}, err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != 3+len(outputPins) {
		return serverFacts{}, fmt.Errorf("unexpected shape of the answer")
	}
	var f serverFacts
	row := results[0].Rows[0]
	pid, err := strconv.ParseUint(string(row[0]), 10, 32)
	if err != nil {
		return f, fmt.Errorf("backend pid: %w", err)
	}
	f.backendPID = uint32(pid)
	if f.version, err = strconv.Atoi(string(row[1])); err != nil {
		return f, fmt.Errorf("server_version_num: %w", err)
	}
	ms, err := strconv.ParseInt(string(row[2]), 10, 32)
	if err != nil {
		return f, fmt.Errorf("wal_sender_timeout: %w", err)
	}
	f.walSenderTimeout = time.Duration(ms) * time.Millisecond
	for _, v := range row[3:] {
		f.settings = append(f.settings, string(v))
	}
	return f, nil
}

// verifySession refuses a session whose output could differ from what the
// mapping was checked for, and a pooler between us and the server.
func verifySession(ctx context.Context, conn *pgconn.PgConn) (serverFacts, error) {
	f, err := readFacts(ctx, conn)
	if err != nil {
		return f, classify("read session settings", "", err)
	}
	if f.version < MinServerVersion {
		return f, errOldServer(f.version)
	}
	if f.backendPID != conn.PID() {
		// A pooler hands out cancel keys of its own: the pid of the start-up
		// packet is then not the backend's.
		return f, classify("connect", "", fmt.Errorf("%w (the start-up packet named backend %d, the server says %d)",
			ErrPooler, conn.PID(), f.backendPID))
	}
	for i, p := range outputPins {
		if !pinHolds(p, f.settings[i]) {
			return f, classify("connect", "", fmt.Errorf("%w (asked for %s=%s, got %s)", ErrPooler, p.name, p.value, f.settings[i]))
		}
	}
	return f, disableTransactionTimeout(ctx, conn, f.version)
}

// pinHolds compares with what current_setting shows: DateStyle has the input
// order behind the style ("ISO, DMY"), which no output depends on.
func pinHolds(p pin, got string) bool {
	if p.name == "DateStyle" {
		got, _, _ = strings.Cut(got, ",")
	}
	return strings.EqualFold(got, p.value)
}

// disableTransactionTimeout covers 17 and newer, where a role's
// transaction_timeout would end long work. It cannot be a start-up parameter:
// older servers refuse names that they do not know.
func disableTransactionTimeout(ctx context.Context, conn *pgconn.PgConn, version int) error {
	if version < 170000 {
		return nil
	}
	_, err := conn.Exec(ctx, "SET transaction_timeout = 0").ReadAll()
	return classify("set transaction_timeout", "", err)
}
