package admin

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// Profiles are served only where they were asked for, and never by the mux that any
// other server of the process would take by default.
func TestProfilesAreOptIn(t *testing.T) {
	t.Parallel()
	off, on := start(t, Config{}), start(t, Config{Pprof: true})
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/goroutine", "/debug/pprof/profile?seconds=1"} {
		if code, _, _ := get(t, off, http.MethodGet, path); code != http.StatusNotFound {
			t.Errorf("off: %s: %d", path, code)
		}
		if code, _, body := get(t, on, http.MethodGet, path); code != http.StatusOK || body == "" {
			t.Errorf("on: %s: %d, %d bytes", path, code, len(body))
		}
		request := httptest.NewRequest(http.MethodGet, path, nil)
		if _, pattern := http.DefaultServeMux.Handler(request); pattern != "" {
			t.Errorf("the default mux serves %s as %s", path, pattern)
		}
	}
	if code, _, _ := get(t, on, http.MethodPost, "/debug/pprof/profile"); code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", code)
	}
}

func TestProfilesAreInTheFormOfTheTools(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Pprof: true})
	gzipped, traced := "\x1f\x8b", "go 1."
	for path, want := range map[string]string{
		"/debug/pprof/heap?gc=1":           gzipped,
		"/debug/pprof/allocs":              gzipped,
		"/debug/pprof/trace?seconds=1":     traced,
		"/debug/pprof/goroutine?debug=1":   "goroutine profile: total",
		"/debug/pprof/":                    "profile?seconds=30",
		"/debug/pprof/nothing":             "no such profile",
		"/debug/pprof/profile?seconds=0":   "seconds must be from 1 to 300",
		"/debug/pprof/profile?seconds=301": "seconds must be from 1 to 300",
		"/debug/pprof/trace?seconds=x":     "seconds must be from 1 to 300",
	} {
		if _, _, body := get(t, s, http.MethodGet, path); !strings.HasPrefix(body, want) {
			t.Errorf("%s begins with %.40q, want %q", path, body, want)
		}
	}
}

// The process has one CPU profiler: a second request is told so, and the client's
// going ends the first.
func TestOneCPUProfileAtATime(t *testing.T) {
	// Not parallel: another test takes a CPU profile too.
	s := start(t, Config{Pprof: true})
	ctx, hangUp := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Addr()+"/debug/pprof/profile?seconds=300", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if code, _, body := get(t, s, http.MethodGet, "/debug/pprof/profile?seconds=1"); code != http.StatusConflict {
		t.Errorf("a second profile: %d %s", code, body)
	}
	hangUp()
	awaitProfile(t, s, http.StatusOK)
}

// awaitProfile asks for short profiles until the answer is the wanted one.
func awaitProfile(t *testing.T, s *Server, want int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		code, _, body := get(t, s, http.MethodGet, "/debug/pprof/profile?seconds=1")
		if code == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("answer %d, want %d: %s", code, want, body)
		}
	}
}
