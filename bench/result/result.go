// Package result is what a benchmark run writes down: one Result a measured step, as a line of JSON, so that a run
// can be resumed and a report made from what is there.
package result

// Kind is what a step measures.
type Kind string

// The kinds of steps, in the order in which a report shows them.
const (
	KindDrain   Kind = "drain"   // a backlog, by every contender, in interleaved rounds
	KindLatency Kind = "latency" // commit → consumer at a fixed rate
	KindScale   Kind = "scale"   // a drain with one parameter changed
	KindIdle    Kind = "idle"    // CPU while nothing happens
	KindOutage  Kind = "outage"  // memory while the broker is gone
	KindHugeTxn Kind = "hugetxn" // memory and time of one large transaction
)

// Params are the sizes of a step. The base of the scaling axes is 500,000 rows, 6 partitions, 200 bytes, 1 row a transaction.
type Params struct {
	Rows         int     `json:"rows,omitempty"`
	Partitions   int     `json:"partitions,omitempty"`
	PayloadBytes int     `json:"payload_bytes,omitempty"` // of payload::text, on average
	RowsPerTxn   int     `json:"rows_per_txn,omitempty"`
	RatePerSec   float64 `json:"rate_per_sec,omitempty"`
	Seconds      float64 `json:"seconds,omitempty"` // of a step that lasts a fixed time
	Axis         string  `json:"axis,omitempty"`    // of Scale: rows, partitions, payload, transaction
}

// Result is one measured step of one contender in one round.
type Result struct {
	Step      string `json:"step"` // unique in a run, e.g. "drain/2/postrider-lz4"
	Kind      Kind   `json:"kind"`
	Contender string `json:"contender"` // peek, pg_recvlogical, postrider, postrider-gzip, -snappy, -lz4, -zstd, -tls, debezium, debezium-tuned, polling, watermill
	Round     int    `json:"round"`     // from 1
	Params    Params `json:"params"`
	At        string `json:"at"` // RFC 3339

	Events  int     `json:"events,omitempty"`
	Seconds float64 `json:"seconds,omitempty"` // from START (or spawn, where FromSpawn) to the last event acknowledged or read
	// Startup is the time from spawn to the first event at the consumer, in seconds; reported apart from Seconds for slow starters.
	Startup float64 `json:"startup,omitempty"`

	CPU       CPU     `json:"cpu"`        // of the contender's process
	ServerCPU CPU     `json:"server_cpu"` // of the PostgreSQL backends that serve it (walsender, SQL sessions)
	BrokerCPU CPU     `json:"broker_cpu"`
	PeakRSS   int64   `json:"peak_rss,omitempty"` // bytes, of the contender's process
	RSS       []Point `json:"rss,omitempty"`      // over time, in bytes
	BatchMean float64 `json:"batch_mean,omitempty"`

	Latency *Latency `json:"latency,omitempty"`

	Check Check  `json:"check"`
	Note  string `json:"note,omitempty"`  // what a reader has to know of this step
	Error string `json:"error,omitempty"` // the step could not be measured
}

// EventsPerSec is zero where nothing was measured.
func (r Result) EventsPerSec() float64 {
	if r.Seconds <= 0 {
		return 0
	}
	return float64(r.Events) / r.Seconds
}

// CPU is in seconds.
type CPU struct {
	User   float64 `json:"user"`
	System float64 `json:"system"`
}

// Total is user and system time, in seconds.
func (c CPU) Total() float64 { return c.User + c.System }

// Point is a sample: seconds since the step's start, and a value.
type Point struct {
	T float64 `json:"t"`
	V float64 `json:"v"`
}

// Latency is commit → consumer, in milliseconds.
type Latency struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	Max   float64 `json:"max"`
	// Curve: T is the share of events (0…1), V the latency in ms that so many stay under; some 60 points, denser towards 1.
	Curve []Point `json:"curve,omitempty"`
}

// Check is what was verified before the speed counts. Checked is false for contenders that publish nothing (peek, pg_recvlogical).
type Check struct {
	Checked    bool `json:"checked"`
	Missing    int  `json:"missing"`
	OutOfOrder int  `json:"out_of_order"` // first occurrences of a key out of commit order
	WrongBytes int  `json:"wrong_bytes"`  // payload differs from payload::text
	Duplicates int  `json:"duplicates"`
}

// OK says that what arrived is right: duplicates are allowed, and reported.
func (c Check) OK() bool { return c.Missing == 0 && c.OutOfOrder == 0 && c.WrongBytes == 0 }

// Environment is what the figures depend on. It is the first line of a run's file.
type Environment struct {
	Machine    string            `json:"machine"` // CPU model, number of cores, memory, kernel
	Cores      int               `json:"cores"`
	MemoryMB   int               `json:"memory_mb"`
	Versions   map[string]string `json:"versions"` // postgresql, kafka, java, go, postrider, debezium, connect, watermill, kafka-go
	Started    string            `json:"started"`  // RFC 3339
	Took       float64           `json:"took"`     // seconds, of the whole run
	Quick      bool              `json:"quick"`
	Settings   map[string]string `json:"settings"`    // contender → its settings that differ from defaults, as text
	PGSettings map[string]string `json:"pg_settings"` // what of PostgreSQL differs from defaults
}

// Run is a whole run, as the report reads it.
type Run struct {
	Environment Environment
	Results     []Result
}
