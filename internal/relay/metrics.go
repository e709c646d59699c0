package relay

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/control"
	"github.com/postrider/postrider/internal/receipts"
	"github.com/postrider/postrider/replication"
)

// Log keys that occur in more than one place.
const keySlot = "slot"

// metrics are the relay's own; the publisher has its own set.
type metrics struct {
	published    prometheus.Counter
	unrouted     prometheus.Counter
	reconnects   prometheus.Counter
	generations  prometheus.Counter
	ignoredOps   *prometheus.CounterVec
	refusals     *prometheus.CounterVec
	parked       *prometheus.CounterVec
	deadLetters  *prometheus.CounterVec
	parkedNow    *prometheus.GaugeVec
	parkedOldest prometheus.GaugeFunc
	ownerless    prometheus.Gauge
	heldKeys     prometheus.GaugeFunc
	paused       prometheus.Gauge
	purged       *prometheus.CounterVec
	receipts     prometheus.Counter
	// receiptsDropped has a value for each reason from the beginning, so that its rate does.
	receiptsDropped *prometheus.CounterVec
	storedLSN       prometheus.Gauge
	confirmedLSN    prometheus.Gauge
	restartLSN      prometheus.Gauge
	heldBytes       prometheus.Gauge
	safeBytes       prometheus.Gauge
	walStatus       *prometheus.GaugeVec
	oldestSeconds   prometheus.GaugeFunc
	unconfirmed     prometheus.GaugeFunc

	// mu covers gen, which the functions above look at, and firstParked.
	mu          sync.Mutex
	gen         *generation
	firstParked time.Time
}

// newMetrics registers the relay's metrics with reg, if it is not nil. Their names
// are listed in docs/metrics.md and asserted in a test.
func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "postrider", Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "postrider", Name: name, Help: help})
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "postrider", Name: name, Help: help}, []string{label})
	}
	m.published = counter("events_published_total", "Events that the broker has acknowledged.")
	m.unrouted = counter("rows_unrouted_total", "Inserted rows of tables that are no source.")
	m.reconnects = counter("reconnects_total", "Links to PostgreSQL that broke or did not come up.")
	m.generations = counter("generations_total", "Times that the relay began anew from the stored position.")
	m.ignoredOps = vec("ignored_total", "Changes that publish nothing, by operation.", "op")
	m.refusals = vec("refused_total", "Events that could not be published, by reason.", "reason")
	m.parked = vec("parked_total", "Events that were parked and are durable, by reason; held ones stand behind another of their key.", "reason")
	m.deadLetters = vec("dead_letters_total", "Copies of parked events for dead-letter topics, by result: sent, given_up, or failed, which is tried again.", "result")
	m.parkedNow = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "postrider", Name: "parked_events", Help: "Parked events that are neither published nor discarded, by reason.",
	}, []string{"reason"})
	m.parkedOldest = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "postrider", Name: "parked_oldest_seconds", Help: "Since when the oldest of them is parked; 0 where there is none.",
	}, m.parkedAge)
	m.ownerless = gauge("parked_ownerless_events", "Those of them that are assigned to nobody.")
	m.heldKeys = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "postrider", Name: "held_keys", Help: "Keys of which later events wait behind a parked one.",
	}, m.heldNow)
	m.paused = gauge("paused", "1 while publishing is paused by `postrider pause`, reached or not.")
	m.purged = vec("purged_rows_total", "Rows that the scheduled purge has deleted, by table.", "table")
	m.receipts = counter("receipts_written_total", "Receipts that are in postrider.receipt: where an event was acknowledged.")
	m.receiptsDropped = vec("receipts_dropped_total",
		"Events that were acknowledged and have no receipt, by reason: buffer_full, no_offset (the broker did not name it), refused (by PostgreSQL), stopped.", "reason")
	for _, reason := range receipts.Reasons {
		m.receiptsDropped.WithLabelValues(reason)
	}
	m.storedLSN = gauge("stored_lsn", "The durable position, as a byte position in the WAL.")
	m.confirmedLSN = gauge("confirmed_lsn", "What was last reported to the slot, as a byte position in the WAL.")
	m.restartLSN = gauge("restart_lsn", "Where the slot would begin to read again, as a byte position in the WAL.")
	m.heldBytes = gauge("wal_held_bytes", "WAL that the slot keeps PostgreSQL from removing.")
	m.safeBytes = gauge("safe_wal_bytes", "WAL that may still be written before the slot is in danger; absent limits show as -1.")
	m.walStatus = prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "postrider", Name: "wal_status", Help: "1 for the slot's current wal_status."}, []string{"status"})
	m.oldestSeconds = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "postrider", Name: "oldest_unconfirmed_seconds", Help: "Age of the oldest event that was received and is not resolved, or at which a pause holds the stream; 0 where there is none.",
	}, m.oldestAge)
	m.unconfirmed = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "postrider", Name: "unconfirmed_events", Help: "Events that were received and are not resolved.",
	}, m.unconfirmedEvents)
	if reg != nil {
		reg.MustRegister(m.published, m.unrouted, m.reconnects, m.generations, m.ignoredOps, m.refusals, m.parked, m.deadLetters,
			m.parkedNow, m.parkedOldest, m.ownerless, m.heldKeys, m.paused, m.purged, m.receipts, m.receiptsDropped,
			m.storedLSN, m.confirmedLSN, m.restartLSN, m.heldBytes, m.safeBytes, m.walStatus, m.oldestSeconds, m.unconfirmed)
	}
	return m
}

func (m *metrics) pausing(p control.Pausing) {
	m.paused.Set(0)
	if p.On() {
		m.paused.Set(1)
	}
}

func (m *metrics) ignored(op string)           { m.ignoredOps.WithLabelValues(op).Inc() }
func (m *metrics) refused(reason event.Reason) { m.refusals.WithLabelValues(string(reason)).Inc() }
func (m *metrics) confirmed(at event.LSN)      { m.confirmedLSN.Set(float64(at)) }
func (m *metrics) stored(row checkpoint.Row)   { m.storedLSN.Set(float64(row.Confirmed)) }

// slot shows the slot's health; current is the WAL's end.
func (m *metrics) slot(s replication.SlotInfo, current event.LSN) {
	m.restartLSN.Set(float64(s.RestartLSN))
	m.heldBytes.Set(float64(current - min(current, s.RestartLSN)))
	m.safeBytes.Set(-1)
	if s.HasSafeWALSize {
		m.safeBytes.Set(float64(s.SafeWALSize))
	}
	m.walStatus.Reset()
	m.walStatus.WithLabelValues(s.WALStatus).Set(1)
}

// scopedRegisterer registers a generation's metrics and takes them away with it.
type scopedRegisterer struct {
	under prometheus.Registerer
	mu    sync.Mutex
	own   []prometheus.Collector
}

var _ prometheus.Registerer = (*scopedRegisterer)(nil)

func (s *scopedRegisterer) Register(c prometheus.Collector) error {
	if s.under == nil {
		return nil
	}
	if err := s.under.Register(c); err != nil {
		return err
	}
	s.mu.Lock()
	s.own = append(s.own, c)
	s.mu.Unlock()
	return nil
}

func (s *scopedRegisterer) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := s.Register(c); err != nil {
			panic(err)
		}
	}
}

func (s *scopedRegisterer) Unregister(c prometheus.Collector) bool {
	return s.under != nil && s.under.Unregister(c)
}

func (s *scopedRegisterer) unregisterAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.own {
		s.under.Unregister(c)
	}
	s.own = nil
}

// watch points the gauges that are computed when asked at a generation.
func (m *metrics) watch(g *generation) {
	m.mu.Lock()
	m.gen = g
	m.mu.Unlock()
}

func (m *metrics) ledgerNow() *checkpoint.Ledger {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gen == nil {
		return nil
	}
	return m.gen.ledgerNow()
}

func (m *metrics) oldestAge() float64 {
	m.mu.Lock()
	gen := m.gen
	m.mu.Unlock()
	if gen != nil {
		if oldest, ok := gen.oldest(); ok {
			return max(0, time.Since(oldest).Seconds())
		}
	}
	return 0
}

func (m *metrics) unconfirmedEvents() float64 {
	if l := m.ledgerNow(); l != nil {
		return float64(l.Unresolved())
	}
	return 0
}
