package contender

import (
	"context"

	"github.com/postrider/postrider/bench/peers/polling"
	"github.com/postrider/postrider/bench/rig"
)

// Polling is the relay that most teams write themselves. What it is given in fairness: a partial index, prepared
// statements over one session, batches of 1,000 rows that are sent as a whole and marked by one statement, a next poll
// at once after a full batch, fresh statistics, and the Writer's BatchTimeout at 1 ms (its default is a second,
// which it would wait after every poll). It has one worker, because two lose the order within a key.
type Polling struct{ versions map[string]string }

var _ OwnTable = (*Polling)(nil)

// Name is "polling".
func (*Polling) Name() string { return "polling" }

// Describe gives what the relay is made of.
func (*Polling) Describe() string {
	return "SELECT … FOR UPDATE SKIP LOCKED of 1,000 rows, kafka-go Writer (acks=all, hash by key, BatchTimeout 1 ms), " +
		"UPDATE … dispatched_at, partial index, one worker, 100 ms between polls that were not full; own table with a bigserial"
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
func (*Polling) Start(_ context.Context, job Job) (*rig.Process, error) {
	return rig.Start(pollingCommand(job.Rig.BinDir(), job.Rig.DSN(), job))
}

func pollingTable(job Job) string { return job.Table + "_polling" }

func pollingCommand(binDir, dsn string, job Job) rig.Command {
	return peerCommand(binDir, "polling", dsn, job, "-table", pollingTable(job), "-topic", job.Topic)
}
