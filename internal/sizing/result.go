package sizing

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/operr"
)

// Result is what was measured; its fields are a contract of --json. The doc tags are
// the manual's.
type Result struct {
	Postgres     string `json:"postgres" doc:"the server's version"`
	Rows         int    `json:"rows" doc:"events of the backlog"`
	PayloadBytes int    `json:"payload_bytes" doc:"of each event"`
	PerTx        int    `json:"rows_per_transaction" doc:"events that were committed together"`
	Partitions   int    `json:"partitions" doc:"of the topic"`

	EventsPerSecond float64 `json:"events_per_second" doc:"published from the backlog, from the stream's beginning to the last acknowledgement"`
	DrainSeconds    float64 `json:"drain_seconds" doc:"how long that took"`
	CPUPerEvent     float64 `json:"cpu_microseconds_per_event" doc:"CPU time of this process during the drain, user and system"`
	PeakRSS         int64   `json:"peak_rss_bytes" doc:"most memory that this process held during the drain; 0 where it is not known"`
	EventsPerBatch  float64 `json:"events_per_batch" doc:"mean size of a record batch"`
	BrokerWait      float64 `json:"broker_wait_share" doc:"0 to 1: of the drain, spent waiting for acknowledgements with nothing left to read or no room"`
	MachineBusy     float64 `json:"machine_busy_share" doc:"0 to 1: of all cores of this machine during the drain; 0 where it is not known"`

	DecodePerSecond float64 `json:"decode_events_per_second" doc:"what PostgreSQL decodes for nobody: the limit of every relay"`
	WALPerEvent     float64 `json:"wal_bytes_per_event" doc:"written by the whole server while the backlog was"`

	LatencyRate   float64 `json:"latency_events_per_second" doc:"rate that the latency run reached; 0 where there was none"`
	LatencyEvents int     `json:"latency_events" doc:"events of the latency run that arrived"`
	LatencyP50    float64 `json:"latency_p50_milliseconds" doc:"median, from the return of COMMIT until a consumer has the event; it is readable when it may be acknowledged"`
	LatencyP95    float64 `json:"latency_p95_milliseconds" doc:"95th percentile"`
	LatencyP99    float64 `json:"latency_p99_milliseconds" doc:"99th percentile"`
	LatencyMax    float64 `json:"latency_max_milliseconds" doc:"the slowest event"`

	Limit     string `json:"limit" doc:"decoding, brokers, process, machine or stream"`
	LimitText string `json:"limit_text" doc:"the same in plain words"`

	Committed  int `json:"committed" doc:"events of both runs"`
	Delivered  int `json:"delivered" doc:"of them found in the topic, read back by another client"`
	Lost       int `json:"lost" doc:"committed, and not in the topic"`
	OutOfOrder int `json:"out_of_order" doc:"overtaken by a later event of the same key"`
	WrongBytes int `json:"wrong_bytes" doc:"records whose key, payload or headers are not what was written"`
	Duplicates int `json:"duplicates" doc:"further copies of an event"`

	Seconds    float64  `json:"seconds" doc:"of the whole run"`
	LeftBehind []string `json:"left_behind" doc:"what could not be removed, with the command for it"`
}

func (r *Result) addDrain(d drained, decoding float64, walBytes int64) {
	rows := float64(r.Rows)
	r.EventsPerSecond, r.DrainSeconds = rows/d.took.Seconds(), d.took.Seconds()
	r.CPUPerEvent, r.PeakRSS, r.EventsPerBatch = perEvent(d.cpu, r.Rows), d.peakRSS, rows/float64(max(1, d.batches))
	r.BrokerWait, r.MachineBusy = d.forBrokers, d.machine
	r.DecodePerSecond, r.WALPerEvent = decoding, float64(walBytes)/rows
	r.Limit, r.LimitText = limit(r.EventsPerSecond, decoding, d)
}

func (r *Result) addLatency(l latency) {
	r.LatencyRate, r.LatencyEvents = l.rate, l.events
	r.LatencyP50, r.LatencyP95 = milliseconds(l.p50), milliseconds(l.p95)
	r.LatencyP99, r.LatencyMax = milliseconds(l.p99), milliseconds(l.max)
}

func (r *Result) addArrivals(a arrivals) {
	r.Delivered, r.Lost = a.Delivered, r.Committed-a.Delivered
	r.OutOfOrder, r.WrongBytes, r.Duplicates = a.OutOfOrder, a.WrongBytes, a.Duplicates
}

// Err says that a speed was measured at which not everything arrived as it should.
func (r *Result) Err() error {
	if r.Lost == 0 && r.OutOfOrder == 0 && r.WrongBytes == 0 {
		return nil
	}
	return &operr.Error{
		Class: operr.Internal, Op: "check", Subject: "what arrived",
		Err:  fmt.Errorf("%w: %d lost, %d out of order, %d with wrong bytes", errWrong, r.Lost, r.OutOfOrder, r.WrongBytes),
		Hint: "report it, with this output and the versions of both servers",
	}
}

// Print writes one screen for people.
func (r *Result) Print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\nPostgreSQL %s, %s events of %s, %s a transaction, %s\n\n",
		r.Postgres, number(r.Rows), counted(r.PayloadBytes, "byte"), number(r.PerTx), counted(r.Partitions, "partition"))
	memory := "memory unknown"
	if r.PeakRSS > 0 {
		memory = size(r.PeakRSS)
	}
	fmt.Fprintf(&b, "  This machine: %s events/s, %s\n\n", rounded(r.EventsPerSecond), memory)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-9s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("drain", "%s events/s, %.1f s from the stream's beginning to the last acknowledgement, %.0f events a batch", rounded(r.EventsPerSecond), r.DrainSeconds, r.EventsPerBatch)
	line("CPU", "%.2f µs an event, of this process", r.CPUPerEvent)
	line("memory", "%s at most", memory)
	line("decoding", "%s events/s: PostgreSQL alone, for nobody", rounded(r.DecodePerSecond))
	line("WAL", "%s bytes an event", number(int(r.WALPerEvent+0.5)))
	if r.LatencyEvents > 0 {
		line("latency", "p50 %.1f ms, p95 %.1f ms, p99 %.1f ms, max %.1f ms from COMMIT to a consumer, at %s events/s",
			r.LatencyP50, r.LatencyP95, r.LatencyP99, r.LatencyMax, rounded(r.LatencyRate))
	}
	fmt.Fprintf(&b, "\n%s\n", wrap("What limits the drain is "+r.LimitText))
	fmt.Fprintf(&b, "\n%s\n", wrap(r.checked()))
	for _, left := range r.LeftBehind {
		fmt.Fprintf(&b, "Left behind: %s\n", left)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// checked says what the figures rest on.
func (r *Result) checked() string {
	if r.Err() != nil {
		return fmt.Sprintf("WRONG: of %s committed events %s are lost, %s out of order, %s have wrong bytes.",
			number(r.Committed), number(r.Lost), number(r.OutOfOrder), number(r.WrongBytes))
	}
	return fmt.Sprintf("Checked: all %s events that were committed stand in the topic, read back by another client, byte for byte and in the order of their keys, with %s; "+
		"the slot was confirmed up to the last.", number(r.Committed), counted(r.Duplicates, "duplicate"))
}

// screenWidth is where sentences break.
const screenWidth = 110

func wrap(text string) string {
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case column == 0:
		case column+1+len(word) > screenWidth:
			b.WriteString("\n")
			column = 0
		default:
			b.WriteString(" ")
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}

func seconds(since time.Time) float64 { return time.Since(since).Seconds() }
