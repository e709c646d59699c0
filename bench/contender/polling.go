package contender

import (
	"context"

	"github.com/postrider/postrider/bench/peers/polling"
	"github.com/postrider/postrider/bench/rig"
)

// Polling is the relay that most teams write themselves, and a good one: a partial index, prepared statements over one session,
// batches of 1,000 rows that are sent as a whole and marked by one statement, the next poll at once after a full batch, fresh
// statistics, and the Writer's BatchTimeout at 5 ms (its default is a second, which it would wait in every poll). It has one
// worker, because two lose the order within a key.
//
// Tuned is the best that was found of its kind: rows are deleted rather than marked, 5,000 a poll (10,000 are no faster),
// BatchTimeout 1 ms (5 ms costs a fifth of the speed, 10 ms a third), 10 ms between polls.
type Polling struct {
	Tuned bool

	versions map[string]string
}

var _ OwnTable = (*Polling)(nil)

// Name is "polling" or "polling-tuned".
func (p *Polling) Name() string {
	if p.Tuned {
		return "polling-tuned"
	}
	return "polling"
}

// Describe gives what the relay is made of.
func (p *Polling) Describe() string {
	const common = "SELECT … FOR UPDATE SKIP LOCKED, kafka-go Writer (acks=all, hash by key), one worker, partial index, own table with a bigserial; "
	if p.Tuned {
		return common + "5,000 rows a poll, DELETE, BatchTimeout 1 ms, 10 ms between polls that were not full"
	}
	return common + "1,000 rows a poll, UPDATE … dispatched_at, BatchTimeout 5 ms, 100 ms between polls that were not full"
}

// settings are the flags of the program.
func (p *Polling) settings() []string {
	if p.Tuned {
		return []string{"-batch", "5000", "-delete", "-linger", "1ms", "-interval", "10ms"}
	}
	return []string{"-batch", "1000", "-linger", "5ms", "-interval", "100ms"}
}

// Versions are those of its libraries.
func (p *Polling) Versions() map[string]string { return p.versions }

// Source is a table.
func (*Polling) Source() Source { return FromTable }

// Prepare builds the relay.
func (p *Polling) Prepare(ctx context.Context, r *rig.Rig) (err error) {
	p.versions, err = buildPeer(ctx, r.Root(), r.BinDir(), "polling", map[string]string{
		"kafka-go": "github.com/segmentio/kafka-go", "pgx": "github.com/jackc/pgx/v5",
	})
	return err
}

// Fill makes <Table>_polling.
func (*Polling) Fill(ctx context.Context, job Job) error {
	table := pollingTable(job)
	return runSQL(ctx, job.Rig.DSN(), polling.Setup(table, job.Table), polling.Analyze(table))
}

// InsertSQL is an INSERT into <Table>_polling.
func (*Polling) InsertSQL(job Job) string { return polling.Insert(pollingTable(job)) }

// Start starts the relay.
func (p *Polling) Start(_ context.Context, job Job) (*rig.Process, error) {
	args := append([]string{"-table", pollingTable(job), "-topic", job.Topic}, p.settings()...)
	return rig.Start(peerCommand(job, "polling", args...))
}

func pollingTable(job Job) string { return job.Table + "_polling" }
