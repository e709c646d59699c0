package config

import (
	"errors"
	"slices"
	"strings"
	"testing"
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
