package relay

import (
	"sync"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/control"
	"github.com/postrider/postrider/publisher"
)

// The phases of a run, as Status shows them.
const (
	phaseStarting     = "starting"
	phaseConnecting   = "connecting"
	phaseStandby      = "standby"
	phaseStreaming    = "streaming"
	phaseReconnecting = "reconnecting"
	phaseDraining     = "draining"
	phaseStopped      = "stopped"
)

// staleAfter is how long the wire may be silent before a streaming relay is not ready
// any more. PostgreSQL sends a keepalive at half of wal_sender_timeout (60 s by default).
const staleAfter = 90 * time.Second

// Status is what /status.json shows. Times are RFC 3339.
type Status struct {
	Publisher string `json:"publisher"`
	Slot      string `json:"slot"`
	// Phase is starting, connecting, standby, streaming, pausing, paused, reconnecting, draining or stopped.
	Phase string `json:"phase"`
	// WaitsFor says what keeps it from streaming, "" where nothing does.
	WaitsFor string `json:"waits_for,omitempty"`
	// PausedAt and PausedBy: publishing is, or is to be, paused.
	PausedAt *time.Time `json:"paused_at"`
	PausedBy string     `json:"paused_by,omitempty"`
	// Ready says that the slot is ours, the wire is alive, and nobody has paused it.
	Ready bool `json:"ready"`
	// Stored is the durable position, HandedOn how far the stream was routed.
	Stored   event.LSN `json:"stored_lsn"`
	HandedOn event.LSN `json:"handed_on_lsn"`
	// Unconfirmed events were received and are not resolved; the oldest was committed at OldestUnconfirmed.
	Unconfirmed       int        `json:"unconfirmed_events"`
	OldestUnconfirmed *time.Time `json:"oldest_unconfirmed_at"`
	Published         uint64     `json:"events_published"`
	LastAcknowledged  *time.Time `json:"last_acknowledged_at"`
	LastWireActivity  *time.Time `json:"last_wire_activity_at"`
	Publishing        Publishing `json:"publishing"`
}

// Publishing is the publisher's part of Status; publisher.Stats says what the fields mean.
type Publishing struct {
	PendingEvents      int64    `json:"pending_events"`
	StuckEvents        int64    `json:"stuck_events"`
	WindowBytes        int64    `json:"window_bytes"`
	WindowLimitBytes   int64    `json:"window_limit_bytes"`
	Lanes              int      `json:"lanes"`
	StoppedLanes       int      `json:"stopped_lanes"`
	AwaitedTopics      []string `json:"awaited_topics"`
	Batches            int64    `json:"acknowledged_batches"`
	Requests           int64    `json:"requests"`
	PossibleDuplicates int64    `json:"possible_duplicates"`
}

func publishing(s publisher.Stats) Publishing {
	return Publishing{
		PendingEvents: s.PendingEvents, StuckEvents: s.StuckEvents, WindowBytes: s.WindowBytes, WindowLimitBytes: s.Window,
		Lanes: s.Lanes, StoppedLanes: s.StoppedLanes, AwaitedTopics: s.AwaitedTopics, Batches: s.AckedBatches,
		Requests: s.Requests, PossibleDuplicates: s.PossibleDuplicates,
	}
}

// state is what the running relay shows to others.
type state struct {
	mu        sync.Mutex
	phase     string
	waits     string
	gen       *generation
	activity  func() time.Time
	lastAck   time.Time
	published uint64
	// pause is what was asked for, as a link last read it; pauseAt how far that is.
	pause   control.Pausing
	pauseAt control.State
}

func (s *state) set(phase string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase = phase
	if phase != phaseStreaming && phase != phaseDraining {
		s.activity = nil
	}
	if phase == phaseDraining || phase == phaseStopped {
		s.waits = ""
	}
}

func (s *state) waitFor(what string) {
	s.mu.Lock()
	s.waits = what
	s.mu.Unlock()
}

func (s *state) streaming(activity func() time.Time) {
	s.mu.Lock()
	s.phase, s.waits, s.activity = phaseStreaming, "", activity
	s.mu.Unlock()
}

// pausing shows a pause, or its end.
func (s *state) pausing(wish control.Pausing, at control.State) {
	s.mu.Lock()
	s.pause, s.pauseAt = wish, at
	gen := s.gen
	s.mu.Unlock()
	if gen != nil {
		gen.metrics.pausing(wish)
	}
}

func (s *state) publish(g *generation) {
	s.mu.Lock()
	s.gen = g
	s.mu.Unlock()
	g.metrics.watch(g)
}

func (s *state) acknowledged(n int) {
	s.mu.Lock()
	s.lastAck = time.Now()
	s.published += uint64(n)
	s.mu.Unlock()
}

// Status is a snapshot for status pages and probes.
func (r *Relay) Status() Status {
	r.state.mu.Lock()
	s := Status{Publisher: r.cfg.Publisher, Slot: r.cfg.Replication.Slot, Phase: r.state.phase, WaitsFor: r.state.waits, Published: r.state.published}
	gen, activity, lastAck := r.state.gen, r.state.activity, r.state.lastAck
	pause, pauseAt := r.state.pause, r.state.pauseAt
	r.state.mu.Unlock()
	if s.Phase == "" {
		s.Phase = phaseStarting
	}
	s.LastAcknowledged = optionalTime(lastAck)
	if activity != nil {
		at := activity()
		s.LastWireActivity = optionalTime(at)
		s.Ready = s.Phase == phaseStreaming && time.Since(at) < staleAfter
	}
	s.paused(pause, pauseAt)
	if gen == nil {
		return s
	}
	s.Stored, s.HandedOn = gen.row().Confirmed, event.LSN(gen.handedOn.Load())
	s.Publishing = publishing(gen.publisher.Stats())
	if ledger := gen.ledgerNow(); ledger != nil {
		s.Unconfirmed = ledger.Unresolved()
	}
	if oldest, ok := gen.oldest(); ok {
		s.OldestUnconfirmed = optionalTime(oldest)
	}
	return s
}

// paused puts a pause in the place of streaming.
func (s *Status) paused(p control.Pausing, at control.State) {
	if !p.On() {
		return
	}
	s.PausedAt, s.PausedBy = optionalTime(p.Since), p.By
	if s.Phase == phaseStreaming {
		s.Phase, s.WaitsFor, s.Ready = string(at), pausedWords(p), false
	}
}

func optionalTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
