package replication

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/postrider/postrider/internal/operr"
	wire "github.com/postrider/postrider/internal/walsendertest"
)

func connectTo(t *testing.T, o wire.Options, change func(*Config)) (*wire.Server, *Session, error) {
	t.Helper()
	srv := wire.Start(t, o)
	cfg := Config{ConnString: srv.ConnString(), Slot: "outbox_slot", Publications: []string{"outbox_pub"}}
	if change != nil {
		change(&cfg)
	}
	s, err := Connect(within(t), cfg)
	if err == nil {
		t.Cleanup(func() { s.Close(context.Background()) })
	}
	return srv, s, err
}

// case C03: what decides the output goes in the start-up packet, over what the
// connection string says, and so do the idle time-outs (none) and wal_sender_timeout.
func TestStartupParameters(t *testing.T) {
	t.Parallel()
	srv, s, err := connectTo(t, wire.Options{WALSenderTimeout: 5 * time.Second}, func(c *Config) {
		c.ConnString += "&datestyle=SQL&TimeZone=Asia/Kolkata&application_name=mine"
		c.WALSenderTimeout = 5 * time.Second
	})
	if err != nil {
		t.Fatal(err)
	}
	got := srv.Startup(0)
	for name, want := range map[string]string{
		"replication": "database", "client_encoding": "UTF8", "DateStyle": "ISO", "bytea_output": "hex", "extra_float_digits": "3",
		"IntervalStyle": "postgres", "TimeZone": "UTC", "lc_monetary": "C", "search_path": "pg_catalog", "quote_all_identifiers": "off", "idle_session_timeout": "0",
		"idle_in_transaction_session_timeout": "0", "wal_sender_timeout": "5000ms", "tcp_user_timeout": "0", "application_name": "mine", "datestyle": "",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	if s.BackendPID() != 4711 || s.ServerVersion() != 150018 || s.WALSenderTimeout() != 5*time.Second {
		t.Errorf("facts: pid %d, version %d, timeout %s", s.BackendPID(), s.ServerVersion(), s.WALSenderTimeout())
	}
}

// A pooler is recognised by what it cannot hide, and refused with the reason.
func TestPoolerIsRefused(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]wire.Options{
		"own cancel keys":    {ReportedPID: 99},
		"settings dropped":   {Settings: map[string]string{"bytea_output": "escape"}},
		"parameter refused":  {Refuse: &pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: bytea_output"}},
		"replication refuse": {Refuse: &pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: replication"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := connectTo(t, o, nil)
			wantErr(t, err, ErrPooler)
			if operr.IsTransient(err) || operr.ClassOf(err) != operr.Postgres || !strings.Contains(operr.HintOf(err), "pooler") {
				t.Fatalf("class %d, hint %q, %v", operr.ClassOf(err), operr.HintOf(err), err)
			}
		})
	}
}

func TestOldServerIsRefused(t *testing.T) {
	t.Parallel()
	_, _, err := connectTo(t, wire.Options{ServerVersion: 130011}, nil)
	if err == nil || operr.IsTransient(err) || !strings.Contains(err.Error(), "130011") {
		t.Fatal(err)
	}
	_, _, err = connectTo(t, wire.Options{Refuse: &pgproto3.ErrorResponse{
		Severity: "FATAL", Code: "42704", Message: `unrecognized configuration parameter "idle_session_timeout"`,
	}}, nil)
	if err == nil || operr.IsTransient(err) || !strings.Contains(operr.HintOf(err), "14 or newer") {
		t.Fatalf("%v, hint %q", err, operr.HintOf(err))
	}
}

func TestTransactionTimeoutIsTurnedOff(t *testing.T) {
	t.Parallel()
	srv, _, err := connectTo(t, wire.Options{ServerVersion: 170002}, nil)
	if err != nil || !slices.Contains(srv.Queries(), "SET transaction_timeout = 0") {
		t.Fatalf("%v: %q", err, srv.Queries())
	}
}

// case C31, case C06, rule 2: the start point asked for is always 0/0; names are quoted.
func TestStartReplicationCommand(t *testing.T) {
	t.Parallel()
	srv, s, err := connectTo(t, wire.Options{Script: untilGone}, func(c *Config) { c.Publications = []string{"Pub-1", `it's "x"`} })
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.Start(within(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close(within(t)) }()
	queries := srv.Queries()
	want := `START_REPLICATION SLOT "outbox_slot" LOGICAL 0/0 (proto_version '1', publication_names '"Pub-1","it''s ""x"""')`
	if got := queries[len(queries)-1]; got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
}

// trap 21, case C30: a held slot names the holder, heals by itself, and leaves the
// session usable for the next attempt.
func TestStartOnABusySlot(t *testing.T) {
	t.Parallel()
	busy := &pgproto3.ErrorResponse{Severity: "ERROR", Code: "55006", Message: `replication slot "outbox_slot" is active for PID 13978`}
	_, s, err := connectTo(t, wire.Options{StartErrors: []*pgproto3.ErrorResponse{busy, busy}, Script: untilGone}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err = s.Start(within(t))
		var held *SlotBusyError
		if !errors.As(err, &held) || held.PID != 13978 || held.Slot != "outbox_slot" || !operr.IsTransient(err) {
			t.Fatalf("got %v", err)
		}
	}
	if _, err := s.Identify(within(t)); err != nil {
		t.Fatalf("the session is of no use any more: %v", err)
	}
	st, err := s.Start(within(t))
	if err != nil {
		t.Fatal(err)
	}
	_ = st.Close(within(t))
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	_, s, err := connectTo(t, wire.Options{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Identify(within(t))
	want := System{SystemID: "7000000000000000001", Timeline: 1, XLogPos: 0x16B3748, DBName: "fake"}
	if err != nil || got != want {
		t.Fatalf("got %+v, %v", got, err)
	}
	if h, err := s.TimelineHistory(within(t), 1); err != nil || len(h) != 0 {
		t.Fatalf("timeline 1 has no history: %v, %v", h, err)
	}
}

func TestConnectTimeoutNamesItself(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	_, err = Connect(within(t), Config{ConnString: "postgres://u@" + ln.Addr().String() + "/d?sslmode=disable", ConnectTimeout: 50 * time.Millisecond})
	if err == nil || !operr.IsTransient(err) || !strings.Contains(err.Error(), "connect timed out after 50ms") {
		t.Fatal(err)
	}
}

// rule 2: the history is read strictly.
func TestParseTimelineHistory(t *testing.T) {
	t.Parallel()
	got, err := parseTimelineHistory("# made by hand\n1\t0/3000000\tno recovery target specified\n\n2\t16/B374D848\n")
	want := []TimelineSwitch{{1, 0x3000000, "no recovery target specified"}, {2, 0x16B374D848, ""}}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %+v, %v", got, err)
	}
	for _, bad := range []string{"1", "x\t0/1\t", "1\t0/1xyz\t", "1\t0/123456789\t"} {
		if _, err := parseTimelineHistory(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

// The one place that decides what heals.
func TestClassify(t *testing.T) {
	t.Parallel()
	pg := func(code, message string) error { return &pgconn.PgError{Code: code, Message: message} }
	tests := []struct {
		err       error
		class     operr.Class
		transient bool
	}{
		{pg("57P01", "terminating connection due to administrator command"), operr.Postgres, true},
		{pg("57P02", "terminating connection because of crash"), operr.Postgres, true},
		{pg("57P03", "the database system is in recovery mode"), operr.Postgres, true},
		{pg("57014", "canceling statement due to user request"), operr.Postgres, true},
		{pg("53300", "sorry, too many clients already"), operr.Postgres, true},
		{pg("53100", "could not extend file: No space left"), operr.Postgres, true},
		{pg("58030", "could not read file"), operr.Postgres, true},
		{pg("40001", "could not serialize access"), operr.Postgres, true},
		{pg("08006", "connection failure"), operr.Postgres, true},
		{pg("55P03", "canceling statement due to lock timeout"), operr.Postgres, true},
		{pg("25006", "cannot execute UPDATE in a read-only transaction"), operr.Postgres, true},
		{pg("0A000", "logical decoding cannot be used while in recovery"), operr.Postgres, true},
		{pg("0A000", "something is not supported"), operr.Postgres, false},
		{pg("55000", `can no longer get changes from replication slot "s"`), operr.Slot, false},
		{&pgconn.PgError{Code: "55000", Message: "cannot read from logical replication slot", Detail: "This slot has been invalidated because it exceeded the maximum reserved size."}, operr.Slot, false},
		{pg("55000", "logical decoding requires wal_level >= logical"), operr.Postgres, false},
		{pg("55000", `replication slot "s" was not created in this database`), operr.Slot, false},
		{pg("42704", `replication slot "s" does not exist`), operr.Slot, false},
		{pg("42704", `publication "p" does not exist`), operr.Postgres, false},
		{pg("58P01", "requested WAL segment has already been removed"), operr.Slot, false},
		{pg("28P01", "password authentication failed"), operr.Postgres, false},
		{pg("28000", "no pg_hba.conf entry"), operr.Postgres, false},
		{pg("42501", "must be superuser or replication role to start walsender"), operr.Postgres, false},
		{pg("3D000", `database "x" does not exist`), operr.Postgres, false},
		{pg("22021", "invalid byte sequence"), operr.Postgres, false},
		{pg("XX000", "internal"), operr.Postgres, false},
		{pg("53400", "all replication slots are in use"), operr.Postgres, false},
		{pg("08P01", "protocol"), operr.Postgres, false},
		{pg("", "no code"), operr.Postgres, false},
		{io.EOF, operr.Postgres, true},
		{io.ErrUnexpectedEOF, operr.Postgres, true},
		{fmt.Errorf("read session settings: %w", pgconn.ErrConnClosed), operr.Postgres, true},
		{fmt.Errorf("read: %w", &net.OpError{Op: "read", Err: errors.New("connection reset by peer")}), operr.Postgres, true},
		{&net.DNSError{Err: "no such host", Name: "x"}, operr.Postgres, true},
		{context.DeadlineExceeded, operr.Postgres, true},
		{context.Canceled, operr.Postgres, false},
		{x509.UnknownAuthorityError{}, operr.Postgres, false},
		{errors.New("tls error: server refused TLS connection"), operr.Postgres, false},
		{&ProtocolError{Problem: "x"}, operr.Postgres, false},
		{&SlotBusyError{Slot: "s"}, operr.Slot, true},
		{ErrSlotTaken, operr.Slot, true},
		{ErrPublicationLost, operr.Postgres, false},
		{errors.New("what is this"), operr.Internal, false},
	}
	for _, tt := range tests {
		err := classify("do", "it", fmt.Errorf("wrapped: %w", tt.err))
		if operr.ClassOf(err) != tt.class || operr.IsTransient(err) != tt.transient {
			t.Errorf("%v: class %d transient %t, want %d %t", tt.err, operr.ClassOf(err), operr.IsTransient(err), tt.class, tt.transient)
		}
		if tt.err != nil && !errors.Is(err, tt.err) {
			t.Errorf("%v is not in the chain of %v", tt.err, err)
		}
	}
	wantErr(t, classify("do", "it", pg("57P01", "")), ErrServerShutdown)
	if _, err := Connect(within(t), Config{ConnString: "postgres://%zz"}); operr.ClassOf(err) != operr.Config {
		t.Errorf("a connection string that cannot be read: %v", err)
	}
	if classify("do", "it", nil) != nil {
		t.Error("nil must stay nil")
	}
}
