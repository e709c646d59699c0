package main

import (
	"net/http"
	"testing"

	"github.com/postrider/postrider/internal/operr"
)

// The configuration decides whether a running relay shows profiles.
func TestRunServesProfilesWhereAsked(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]int{"": http.StatusNotFound, ", pprof: true": http.StatusOK} {
		s := newStack(t, "")
		rewrite(t, s.path, `admin: {listen: "127.0.0.1:0"`, `admin: {listen: "127.0.0.1:0"`+name)
		p := startRun(t, s.path)
		if code, body := p.get("/debug/pprof/heap"); code != want {
			t.Errorf("%q: %d %.60q, want %d", name, code, body, want)
		}
	}
}

func TestProfilesAreRefusedOnAnOpenAddress(t *testing.T) {
	t.Parallel()
	path := writeConfig(t, unreachable)
	rewrite(t, path, `{listen: "127.0.0.1:0"}`, `{listen: "0.0.0.0:0", pprof: true}`)
	runBinary(t, secretEnv(), "run", "--config", path).expect(t, operr.Config.ExitCode(), "admin.pprof", "loopback", "ssh -L")
}
