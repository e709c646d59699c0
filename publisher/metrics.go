package publisher

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the publisher's metrics. Their names are listed in the package
// comment; a test compares the two.
type metrics struct {
	acked       *prometheus.CounterVec
	batches     prometheus.Counter
	batchEvents prometheus.Histogram
	batchBytes  prometheus.Histogram

	requests       prometheus.Counter
	requestSeconds prometheus.Histogram
	retries        *prometheus.CounterVec
	throttled      prometheus.Counter
	connections    prometheus.Gauge
	metadata       *prometheus.CounterVec

	refusals   *prometheus.CounterVec
	epochBumps prometheus.Counter
	duplicates prometheus.Counter
	logResets  prometheus.Counter
	partitions *prometheus.CounterVec
	alarm      *prometheus.GaugeVec
	awaited    *prometheus.GaugeVec

	pending, window, windowLimit, lanes, stopped prometheus.GaugeFunc
}

func newMetrics(p *Publisher) *metrics {
	const ns, sub = "postrider", "publisher"
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help}, labels)
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help, Buckets: buckets})
	}
	gaugeFunc := func(name, help string, f func() float64) prometheus.GaugeFunc {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help}, f)
	}
	return &metrics{
		acked:       counters("acknowledged_events_total", "Events that all in-sync replicas have.", "topic"),
		batches:     counter("acknowledged_batches_total", "Batches that all in-sync replicas have."),
		batchEvents: histogram("batch_events", "Events in an acknowledged batch; sum/count is the mean batch.", prometheus.ExponentialBuckets(1, 4, 7)),
		batchBytes:  histogram("batch_bytes", "Bytes of an acknowledged batch on the wire.", prometheus.ExponentialBuckets(256, 4, 7)),

		requests:       counter("requests_total", "Produce requests sent."),
		requestSeconds: histogram("request_seconds", "Time from sending a Produce request to its answer.", prometheus.ExponentialBuckets(0.0005, 2, 16)),
		retries:        counters("retries_total", "Batches that were not acknowledged by an attempt.", "cause"),
		throttled:      counter("throttled_seconds_total", "Time that brokers asked to wait."),
		connections:    prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "connections", Help: "Open connections to brokers."}),
		metadata:       counters("metadata_refreshes_total", "Metadata requests.", "result"),

		refusals:   counters("refused_events_total", "Events that can never be published as they are.", "reason"),
		epochBumps: counter("epoch_bumps_total", "Times that a partition's producer epoch was raised after the broker lost its state."),
		duplicates: counter("possible_duplicates_total", "Events that may be in the log twice: sent again after an unanswered attempt to a broker that had lost the producer's state."),
		logResets:  counter("log_resets_total", "Partitions whose offsets fell: the topic was recreated."),
		partitions: counters("partition_changes_total", "Changes of a topic's partition count.", "topic", "action"),
		alarm:      gauges("alarm", "1 while something needs somebody's attention.", "kind"),
		awaited:    gauges("awaited_topic", "1 while events wait for a topic that does not exist.", "topic"),

		pending:     gaugeFunc("pending_events", "Events appended and neither acknowledged nor refused.", func() float64 { return float64(p.pending.Load()) }),
		window:      gaugeFunc("window_bytes", "Capacity of the buffers in use.", func() float64 { return float64(p.window.inUse()) }),
		windowLimit: gaugeFunc("window_limit_bytes", "Capacity that buffers may take.", func() float64 { return float64(p.window.size) }),
		lanes:       gaugeFunc("lanes", "Partitions known.", func() float64 { return float64(p.lanes.Load()) }),
		stopped:     gaugeFunc("stopped_lanes", "Partitions that stand at a refused event.", func() float64 { return float64(p.stopped.Load()) }),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.acked, m.batches, m.batchEvents, m.batchBytes,
		m.requests, m.requestSeconds, m.retries, m.throttled, m.connections, m.metadata,
		m.refusals, m.epochBumps, m.duplicates, m.logResets, m.partitions, m.alarm, m.awaited,
		m.pending, m.window, m.windowLimit, m.lanes, m.stopped,
	}
}

// register adds all metrics or none.
func (m *metrics) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	var done []prometheus.Collector
	for _, c := range m.collectors() {
		if err := r.Register(c); err != nil {
			for _, d := range done {
				r.Unregister(d)
			}
			return err
		}
		done = append(done, c)
	}
	return nil
}
