package relay

import (
	"fmt"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/parking"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
)

// Config is what a relay needs. Zero timers take the documented defaults.
type Config struct {
	// Publisher is the name of the checkpoint row.
	Publisher string
	// Replication names the server, the slot and the publications. StillOurs is set by the relay.
	Replication replication.Config
	Router      router.Config
	// Kafka configures the lanes. The callbacks are set by the relay.
	Kafka publisher.Config
	// ShutdownTimeout bounds the drain after the context has ended. Default 30 s.
	ShutdownTimeout time.Duration
	// Until makes the run end by itself.
	Until Until
	// Abandon, when closed, ends a drain at once. Nil: only ShutdownTimeout does.
	Abandon <-chan struct{}
	// Holder names this process in the checkpoint row. Default host:pid.
	Holder string

	// Parking bounds what may be parked.
	Parking parking.Limits
	// KeepParked is how long a parked event that was published or discarded stays in the
	// table; it stays at least until confirmed has passed it. Default 168 h.
	KeepParked time.Duration

	// Purge deletes confirmed rows on a schedule.
	Purge Purge

	Timers Timers

	Log        zerolog.Logger
	Registerer prometheus.Registerer
}

// Until says where a run ends by itself: at an LSN, or at the server's WAL end when it began.
type Until struct {
	LSN event.LSN
	Now bool
}

// Timers are the relay's clocks. Tests shorten them.
type Timers struct {
	// Save is the shortest pause between two checkpoint rows, and how often progress
	// is looked at. Default 1 s.
	Save time.Duration
	// Idle is how long everything must be quiet before the idle row is written. Default 2 s.
	Idle time.Duration
	// Watch is how often the publication and the slot are compared with what was accepted. Default 10 s (rule 7).
	Watch time.Duration
	// Statement bounds each statement about the position, on the server; the answer is
	// awaited for twice as long before the session is given up. A server that cannot be
	// heard is noticed within Watch and that, and must be before it can give the slot
	// to another instance, which takes wal_sender_timeout (trap 20). Default 5 s.
	Statement time.Duration
	// Prune is how often parked events that are done with are removed. Default 1 min.
	Prune time.Duration
	// ParkedLog is how often it is said that events are parked, while the number does
	// not change; where it does, at StandbyLog. Default 10 min.
	ParkedLog time.Duration
	// StandbyLog is how often a waiting standby says so. Default 30 s.
	StandbyLog time.Duration
	// Start is how long a server or broker that cannot be reached is tried at the start
	// of a run before that is an error; once a run has had a link it tries for ever.
	// Default 10 s.
	Start time.Duration
	// BackoffMin and BackoffMax bound the pause before the next connection. Defaults 200 ms and 5 s.
	BackoffMin time.Duration
	BackoffMax time.Duration
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	def(&c.ShutdownTimeout, 30*time.Second)
	def(&c.Timers.Save, time.Second)
	def(&c.Timers.Idle, 2*time.Second)
	def(&c.Timers.Watch, 10*time.Second)
	def(&c.Timers.Statement, checkpoint.DefaultStatementTimeout)
	def(&c.KeepParked, 7*24*time.Hour)
	def(&c.Timers.Prune, time.Minute)
	def(&c.Timers.ParkedLog, 10*time.Minute)
	def(&c.Timers.StandbyLog, 30*time.Second)
	def(&c.Timers.Start, 10*time.Second)
	def(&c.Timers.BackoffMin, 200*time.Millisecond)
	def(&c.Timers.BackoffMax, 5*time.Second)
	if c.Holder == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown-host"
		}
		c.Holder = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	return c
}

// tables are the sources' tables by their catalog names.
func (c Config) tables() []replication.Table {
	tables := make([]replication.Table, len(c.Router.Sources))
	for i, s := range c.Router.Sources {
		tables[i] = replication.Table{Schema: s.Schema, Name: s.Table}
	}
	return tables
}
