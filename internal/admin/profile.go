package admin

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"sync"
	"time"
)

// How long a CPU profile or a trace may run, in seconds.
const (
	defaultProfileSeconds = 30
	maxProfileSeconds     = 300
)

// profiles adds what `go tool pprof` and `go tool trace` ask for. net/http/pprof is
// not used: importing it is enough to serve the same on http.DefaultServeMux.
func profiles(mux *http.ServeMux) {
	mux.HandleFunc("GET /debug/pprof/{$}", listProfiles)
	mux.HandleFunc("GET /debug/pprof/profile", record("CPU profile", pprof.StartCPUProfile, pprof.StopCPUProfile))
	mux.HandleFunc("GET /debug/pprof/trace", record("trace", trace.Start, trace.Stop))
	mux.HandleFunc("GET /debug/pprof/{name}", snapshot)
}

func listProfiles(w http.ResponseWriter, _ *http.Request) {
	plain(w)
	fmt.Fprintf(w, "profile?seconds=%d\ntrace?seconds=1\n", defaultProfileSeconds)
	for _, p := range pprof.Profiles() {
		fmt.Fprintf(w, "%s (%d)\n", p.Name(), p.Count())
	}
}

// record answers with what is recorded for a number of seconds, or until the client
// goes. The process has one recorder of each kind: who comes second gets a 409.
func record(what string, start func(io.Writer) error, stop func()) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		d, err := seconds(r)
		if err != nil {
			refuse(w, http.StatusBadRequest, err)
			return
		}
		control := http.NewResponseController(w)
		// The server's own limit is for answers that come at once.
		if err := control.SetWriteDeadline(time.Now().Add(d + writeTimeout)); err != nil {
			refuse(w, http.StatusInternalServerError, err)
			return
		}
		secure(w, "application/octet-stream")
		out := &sharedWriter{w: w}
		if err := start(out); err != nil {
			refuse(w, http.StatusConflict, fmt.Errorf("no %s: %w", what, err))
			return
		}
		defer stop()
		out.alone(func() { _ = control.Flush() }) // the client learns that it is under way
		select {
		case <-time.After(d):
		case <-r.Context().Done():
		}
	}
}

// sharedWriter lets the handler use the answer while the recorder, which has a
// goroutine of its own, writes to it.
type sharedWriter struct {
	mu sync.Mutex // covers w
	w  io.Writer
}

func (s *sharedWriter) Write(b []byte) (n int, err error) {
	s.alone(func() { n, err = s.w.Write(b) })
	return n, err
}

func (s *sharedWriter) alone(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

func seconds(r *http.Request) (time.Duration, error) {
	text := r.FormValue("seconds")
	if text == "" {
		return defaultProfileSeconds * time.Second, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxProfileSeconds {
		return 0, fmt.Errorf("seconds must be from 1 to %d", maxProfileSeconds)
	}
	return time.Duration(n) * time.Second, nil
}

// snapshot answers with a profile that the runtime keeps: heap, allocs, goroutine and so on.
func snapshot(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	profile := pprof.Lookup(name)
	if profile == nil {
		refuse(w, http.StatusNotFound, errors.New("no such profile; /debug/pprof/ lists them"))
		return
	}
	if name == "heap" && r.FormValue("gc") != "" {
		runtime.GC()
	}
	debug, _ := strconv.Atoi(r.FormValue("debug")) // 0, the binary form, where it is no number
	if debug > 0 {
		plain(w)
	} else {
		secure(w, "application/octet-stream")
	}
	_ = profile.WriteTo(w, debug) // the client has gone: nobody to tell
}

func refuse(w http.ResponseWriter, code int, err error) {
	plain(w)
	w.WriteHeader(code)
	_, _ = w.Write([]byte(err.Error() + "\n")) // the client has gone: nobody to tell
}
