// Package contender starts what the benchmark compares: Postrider itself, PostgreSQL's own tools and the peers.
//
// Whatever publishes writes records of one shape, so that one check and one clock serve all: the key is aggregate_id, the
// value the bytes of payload::text, and the header "id" the event id in its text form. Other headers are free.
package contender

import (
	"context"

	"github.com/postrider/postrider/bench/rig"
	"github.com/postrider/postrider/internal/devstack"
)

// Contender is one way of bringing rows of an outbox table to Kafka. Its methods are for one goroutine at a time.
type Contender interface {
	// Name is as in result.Result.Contender.
	Name() string
	// Describe gives the settings that differ from the defaults, in one line, for the report.
	Describe() string
	// Versions are what the report names, such as "debezium": "3.6.1.Final". It is asked after Prepare.
	Versions() map[string]string
	// Source says what it reads.
	Source() Source
	// Prepare builds or fetches what Start needs, into r.BinDir() or a cache; it is called once, before any measurement,
	// and again in a resumed run: what is there is kept.
	Prepare(ctx context.Context, r *rig.Rig) error
	// Start starts it on the job and returns once the process is spawned (by rig.Start), not when it is ready. It goes on until
	// the process gets a SIGTERM: then it ends within 20 s, in order.
	Start(ctx context.Context, job Job) (*rig.Process, error)
}

// Source is what a contender reads.
type Source string

const (
	// FromSlot is a replication slot: Job.Slot and Job.Publication. Rows come into Job.Table.
	FromSlot Source = "slot"
	// FromTable is the table Job.Table, or what OwnTable makes of it.
	FromTable Source = "table"
)

// Job is what one step asks of a contender. Slot, table, publication and topic exist when it starts; they are its own, and new.
type Job struct {
	Rig *rig.Rig
	// Name is unique in a run, of a-z 0-9 and _: for names of processes, publishers, connectors and groups.
	Name string

	// Table has the product's default layout and lies in the schema public of the database of Rig.DSN: event_id uuid,
	// aggregate_type, aggregate_id text, aggregate_version bigint (the commit order within a key; null where rows are written
	// at a rate), event_type text, payload jsonb, headers jsonb (null), occurred_at timestamptz. For an OwnTable it is a view
	// of the rows to copy.
	Table       string
	Slot        string
	Publication string

	// Topic takes every event, whatever its type.
	Topic      string
	Partitions int
	// Brokers are bootstrap addresses without TLS or login.
	Brokers []string

	// Secure is the broker for a contender that SpeaksTLS; nil for all others.
	Secure *devstack.Kafka
	// AdminAddr is a free address for a contender that has HTTP.
	AdminAddr string

	// WorkDir is an empty folder of the job's own: configuration, offsets, logs. It is removed with the job.
	WorkDir string
	// LogFile is where rig.Start sends stdout and stderr; it is kept if the step fails.
	LogFile string
}

// OwnTable is implemented by a FromTable contender that does not read Job.Table: its outbox has a layout of its own.
type OwnTable interface {
	// Fill makes the contender's table, whose name begins with Job.Table, and copies Job.Table's rows into it in commit
	// order, that of aggregate_version. It is called before Start and is no part of what is measured; the table may be empty (latency, idle).
	Fill(ctx context.Context, job Job) error
	// InsertSQL is the statement with which its application writes one event, in place of an INSERT into Job.Table. Its
	// parameters are $1 event_id, $2 aggregate_type, $3 aggregate_id, $4 event_type, $5 payload (as text).
	InsertSQL(job Job) string
}

// TLS is implemented by a contender whose connections may all be encrypted; its topic then is at Job.Secure.
type TLS interface {
	SpeaksTLS() bool
}

// Batches is implemented by a contender that knows the mean number of events in its batches so far.
type Batches interface {
	BatchMean(ctx context.Context, job Job) (float64, error)
}
