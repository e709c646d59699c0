// Package admin is the HTTP server beside a running relay: /metrics, /healthz,
// /readyz, /status.json and, where it is asked for, /debug/pprof. It has no login,
// so it listens on the loopback address unless the configuration says otherwise.
package admin

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/postrider/postrider/internal/operr"
)

// DefaultListen is taken where Config.Listen is empty.
const DefaultListen = "127.0.0.1:9464"

// Config says what the server shows. Each func is called for each request, by
// several goroutines at once, and must not block for long.
type Config struct {
	// Listen is host:port; port 0 takes a free one. Empty: DefaultListen.
	Listen string
	// Gatherer gives the metrics. Nil: prometheus.DefaultGatherer.
	Gatherer prometheus.Gatherer
	// Healthy is nil while the process works; its error makes /healthz answer 503.
	// A nil func is always healthy.
	Healthy func() error
	// Ready is nil while events can flow; its error says what is waited for and
	// makes /readyz answer 503. A nil func is always ready.
	Ready func() error
	// Status is shown as JSON. Nil: no /status.json.
	Status func() any
	// Pprof adds /debug/pprof/. Profiles show how busy the process is and the names
	// of its functions, and taking one costs CPU: not for an address that strangers reach.
	Pprof bool
	Log   zerolog.Logger
}

// Limits of a request: nothing here is large or slow, and a client that reads
// nothing must not keep a connection for ever.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 30 * time.Second
	idleTimeout       = 60 * time.Second
	maxHeaderBytes    = 16 << 10
)

// Server is a started server.
type Server struct {
	listener net.Listener
	http     *http.Server
	done     chan struct{}
}

// Start binds the address, so that a port in use is an error at once, and serves
// in the background until Close.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Listen == "" {
		cfg.Listen = DefaultListen
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return nil, &operr.Error{
			Class: operr.Config, Op: "listen on", Subject: "admin address " + cfg.Listen, Err: err,
			Hint: "another address in admin.listen; host:0 takes a free port",
		}
	}
	s := &Server{
		listener: listener,
		done:     make(chan struct{}),
		http: &http.Server{
			Handler:           handler(cfg),
			ReadHeaderTimeout: readHeaderTimeout,
			ReadTimeout:       readTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeaderBytes,
		},
	}
	go s.serve(cfg.Log)
	return s, nil
}

func (s *Server) serve(log zerolog.Logger) {
	defer close(s.done)
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		log.Error().Err(err).Msg("the admin server has ended")
	}
}

// Addr is the address that was bound.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Close lets running requests end within ctx, then cuts them. It may be called
// twice, and on nil.
func (s *Server) Close(ctx context.Context) error {
	if s == nil {
		return nil
	}
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	<-s.done
	return err
}
