package config

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// A small file must not become a large one by aliases that repeat each other.
func TestAliasesCannotMultiply(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	repeat := func(anchor, item string) {
		b.WriteString(anchor + strings.Repeat(", "+item, 99) + "]\n")
	}
	b.WriteString("sources:\n  - &s\n    table: public.outbox\n    mapping: {event_id: a, key: b, payload: c}\n    routes:\n      - &r\n        topic: x\n")
	repeat("        match: [&m {field: key, exact: x}", "*m")
	b.WriteString(strings.Repeat("      - *r\n", 99) + strings.Repeat("  - *s\n", 99))
	_, err := Parse("x.yaml", []byte(b.String()), testEnvironment(nil))
	problems := new(Problems)
	if !errors.As(err, &problems) || !slices.ContainsFunc(problems.List, func(p Problem) bool { return strings.Contains(p.Message, "counting aliases") }) {
		t.Errorf("a million conditions in %d bytes were taken: %d problems", b.Len(), len(problems.List))
	}
}

// Of several hosts the primary is taken, since only it has the slot.
func TestSeveralHostsMeanThePrimary(t *testing.T) {
	t.Parallel()
	if got := loadGood(t, "full.good.yml").Postgres.ConnString(); !strings.Contains(got, "target_session_attrs='primary'") {
		t.Error("a standby would do")
	}
	if got := loadGood(t, "minimal.good.yml").Postgres.ConnString(); strings.Contains(got, "target_session_attrs") {
		t.Error("one host needs no choice")
	}
}

// connect_timeout reaches every session by way of the connection string, in whole
// seconds; a dsn's own goes before it.
func TestConnectTimeoutIsInTheString(t *testing.T) {
	t.Parallel()
	const rest = "kafka: {brokers: [b:9092]}\nsources: [{table: public.o, profile: default}]\n"
	for postgres, want := range map[string]string{
		`host: h, database: d, user: u`:                                         " connect_timeout=10",
		`host: h, database: d, user: u, connect_timeout: 1500ms`:                " connect_timeout=2",
		`dsn: "postgres://u@h/d"`:                                               "/d?connect_timeout=10",
		`dsn: "postgres://u@h/d?sslmode=disable"`:                               "&connect_timeout=10",
		`dsn: "postgres://u@h/d?connect_timeout=3", connect_timeout: 60s`:       "?connect_timeout=3",
		`dsn: "host=h user=u dbname=d connect_timeout=4", connect_timeout: 60s`: " connect_timeout=4",
	} {
		c, err := Parse("x.yaml", []byte("postgres: {slot: s, publication: p, "+postgres+"}\n"+rest), testEnvironment(nil))
		if err != nil {
			t.Errorf("%s: %v", postgres, err)
			continue
		}
		got := c.Postgres.ConnString()
		parsed, err := pgconn.ParseConfig(got)
		if err != nil || !strings.HasSuffix(got, want) || parsed.ConnectTimeout <= 0 || parsed.Database != "d" {
			t.Errorf("%s: %v, %q does not end in %q", postgres, err, got, want)
		}
	}
}
