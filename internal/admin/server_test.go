package admin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/postrider/postrider/internal/operr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	cfg.Listen = "127.0.0.1:0"
	s, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func get(t *testing.T, s *Server, method, path string) (code int, contentType, body string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Addr()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header.Get("Content-Type"), string(text)
}

func TestProbesFollowTheirFuncs(t *testing.T) {
	t.Parallel()
	var ready atomic.Bool
	s := start(t, Config{Ready: func() error {
		if ready.Load() {
			return nil
		}
		return errors.New("standby: slot \"outbox_slot\" is active for PID 7")
	}})
	if code, _, body := get(t, s, http.MethodGet, "/healthz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("healthz: %d %q", code, body)
	}
	if code, _, body := get(t, s, http.MethodGet, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "PID 7") {
		t.Errorf("readyz before: %d %q", code, body)
	}
	ready.Store(true)
	if code, _, body := get(t, s, http.MethodGet, "/readyz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("readyz after: %d %q", code, body)
	}
	if code, _, _ := get(t, s, http.MethodHead, "/readyz"); code != http.StatusOK {
		t.Errorf("HEAD readyz: %d", code)
	}
}

func TestMetricsComeFromTheGivenRegistry(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "postrider_test_total", Help: "A test."})
	registry.MustRegister(counter)
	counter.Add(3)
	s := start(t, Config{Gatherer: registry})
	code, contentType, body := get(t, s, http.MethodGet, "/metrics")
	if code != http.StatusOK || !strings.Contains(body, "postrider_test_total 3") || !strings.HasPrefix(contentType, "text/plain") {
		t.Errorf("metrics: %d %s %q", code, contentType, body)
	}
	if strings.Contains(body, "go_goroutines") {
		t.Error("the default registry is shown")
	}
}

func TestStatusIsJSON(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Status: func() any { return map[string]string{"phase": "streaming"} }})
	code, contentType, body := get(t, s, http.MethodGet, "/status.json")
	var got map[string]string
	if err := json.Unmarshal([]byte(body), &got); err != nil || code != http.StatusOK || got["phase"] != "streaming" {
		t.Errorf("status: %d %q %v", code, body, err)
	}
	if contentType != "application/json; charset=utf-8" {
		t.Errorf("content type %s", contentType)
	}
}

func TestNothingElseIsServed(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	for _, path := range []string{"/", "/status.json", "/debug/pprof/", "/metrics/x"} {
		if code, _, _ := get(t, s, http.MethodGet, path); code != http.StatusNotFound {
			t.Errorf("%s: %d", path, code)
		}
	}
	for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
		if code, _, _ := get(t, s, http.MethodPost, path); code != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: %d", path, code)
		}
	}
}

func TestPortInUseIsAnErrorAtStart(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	_, err := Start(t.Context(), Config{Listen: s.Addr()})
	if err == nil || operr.ClassOf(err) != operr.Config || operr.HintOf(err) == "" || !strings.Contains(err.Error(), s.Addr()) {
		t.Errorf("second server on %s: %v", s.Addr(), err)
	}
}

func TestCloseTwiceAndOnNil(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := (*Server)(nil).Close(t.Context()); err != nil {
		t.Error(err)
	}
}
