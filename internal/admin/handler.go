package admin

import (
	"encoding/json"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func handler(cfg Config) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics(cfg))
	mux.HandleFunc("GET /healthz", probe(cfg.Healthy))
	mux.HandleFunc("GET /readyz", probe(cfg.Ready))
	if cfg.Status != nil {
		mux.HandleFunc("GET /status.json", status(cfg.Status))
	}
	if cfg.Pprof {
		profiles(mux)
	}
	return mux
}

func metrics(cfg Config) http.Handler {
	gatherer := cfg.Gatherer
	if gatherer == nil {
		gatherer = prometheus.DefaultGatherer
	}
	return promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{
		// What can be gathered is shown even where one collector fails.
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: 4,
		EnableOpenMetrics:   true,
	})
}

// probe answers 200 "ok", or 503 with the reason.
func probe(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		plain(w)
		if check != nil {
			if err := check(); err != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = w.Write([]byte(err.Error() + "\n")) // the client has gone: nobody to tell
				return
			}
		}
		_, _ = w.Write([]byte("ok\n"))
	}
}

func status(read func() any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		body, err := json.MarshalIndent(read(), "", "  ")
		if err != nil {
			plain(w)
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte("status cannot be shown: " + err.Error() + "\n"))
			return
		}
		secure(w, "application/json; charset=utf-8")
		_, _ = w.Write(append(body, '\n'))
	}
}

func plain(w http.ResponseWriter) { secure(w, "text/plain; charset=utf-8") }

// secure keeps a browser from guessing types or showing old answers.
func secure(w http.ResponseWriter, contentType string) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
}
