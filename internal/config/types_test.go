package config

import (
	"testing"
	"time"
)

func TestSizes(t *testing.T) {
	t.Parallel()
	good := map[string]Bytes{
		"0": 0, "1": 1, "1024": 1024, "12B": 12, "1kB": 1000, "1KB": 1000, "1KiB": 1024, "3 MiB": 3 << 20, "2GiB": 2 << 30, "1MB": 1_000_000, "2GB": 2_000_000_000,
	}
	for text, want := range good {
		var got Bytes
		if err := got.decodeText(text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "1.5MiB", "MiB", "1 M", "1mib", "1TB", "99999999999999999999", "9999999999GiB", "0x10", " 1", "1 KiB "} {
		var got Bytes
		if err := got.decodeText(text); err == nil {
			t.Errorf("%q was taken as %d", text, got)
		}
	}
	for value, want := range map[Bytes]string{0: "0", 1: "1", 1 << 10: "1KiB", 1536: "1536", 32 << 20: "32MiB", 1 << 30: "1GiB", 4_000_000: "4000000"} {
		if got := value.String(); got != want {
			t.Errorf("%d is shown as %s, want %s", int64(value), got, want)
		}
	}
}

func TestDurations(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"30s": "30s", "90s": "1m30s", "300s": "5m", "3600s": "1h", "90m": "1h30m", "10h": "10h", "10m": "10m", "500ms": "500ms", "0": "0s", "1h0m5s": "1h0m5s"} {
		var got Duration
		if err := got.decodeText(text); err != nil || got.String() != want {
			t.Errorf("%q: %s, %v; want %s", text, got, err, want)
		}
		if back, err := time.ParseDuration(got.String()); err != nil || Duration(back) != got {
			t.Errorf("%s does not read back: %v", got, err)
		}
	}
	for _, text := range []string{"30", "", "soon", "1d", "5 s"} {
		var got Duration
		if err := got.decodeText(text); err == nil {
			t.Errorf("%q was taken as %s", text, got)
		}
	}
}

func TestExpansion(t *testing.T) {
	t.Parallel()
	lookup := testEnvironment(map[string]string{"A": "a", "NESTED": "${A}"}).LookupEnv
	cases := []struct{ text, want, template string }{
		{"plain", "plain", "plain"},
		{"${A}", "a", "${A}"},
		{"x${A}y${A}", "xaya", "x${A}y${A}"},
		{"$A $ $$", "$A $ $$", "$A $ $$"},
		{"$${A}", "${A}", "${A}"},
		{"${NESTED}", "${A}", "${NESTED}"},
		{"${NOPE:-b}", "b", "${NOPE:-b}"},
		{"${EMPTY:-b}", "b", "${EMPTY:-b}"},
		{"${EMPTY}", "", "${EMPTY}"},
		{"${NOPE:-}", "", "${NOPE:-}"},
	}
	for _, c := range cases {
		if got, err := expand(c.text, lookup); err != nil || got != c.want {
			t.Errorf("%q: %q, %v; want %q", c.text, got, err, c.want)
		}
		if got, err := expandTemplate(c.text, lookup); err != nil || got != c.template {
			t.Errorf("template %q: %q, %v; want %q", c.text, got, err, c.template)
		}
	}
	if got, err := expandTemplate("${env:A}.${name}", lookup); err != nil || got != "a.${name}" {
		t.Errorf("template: %q, %v", got, err)
	}
	for _, text := range []string{"${NOPE}", "${", "x${A", "${a b}", "${1}", "${env:A}"} {
		if got, err := expand(text, lookup); err == nil {
			t.Errorf("%q became %q", text, got)
		}
	}
}
