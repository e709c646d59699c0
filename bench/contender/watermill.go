package contender

import (
	"context"

	"github.com/postrider/postrider/bench/peers/watermill"
	"github.com/postrider/postrider/bench/rig"
)

// Watermill is the outbox forwarder of the library watermill, from watermill-sql to watermill-kafka. Its subscriber hands over
// a message when the one before is acknowledged, and its publisher sends each by itself, so a round trip to the
// broker is paid for every event; no setting changes that, and a second forwarder of the same group would wait for the
// first one's lock. What it is given in fairness: 1,000 rows a SELECT (default 100; each SELECT sorts what waits; 1,000 is half as fast again, 5,000
// is no faster), 100 ms between polls (default a second), fresh statistics.
type Watermill struct{ versions map[string]string }

var _ OwnTable = (*Watermill)(nil)

// Name is "watermill".
func (*Watermill) Name() string { return "watermill" }

// Describe gives the settings.
func (*Watermill) Describe() string {
	return "components/forwarder, watermill-sql DefaultPostgreSQLSchema (1,000 rows a SELECT, 100 ms between empty ones), watermill-kafka " +
		"with acks=all and a key; its own table, filled with the forwarder's envelopes (payload in base64, so its bytes are kept)"
}

// Versions are those of its libraries.
func (w *Watermill) Versions() map[string]string { return w.versions }

// Source is a table.
func (*Watermill) Source() Source { return FromTable }

// Prepare builds the forwarder.
func (w *Watermill) Prepare(ctx context.Context, r *rig.Rig) (err error) {
	w.versions, err = buildPeer(ctx, r.Root(), r.BinDir(), "watermill", map[string]string{
		"watermill":       "github.com/ThreeDotsLabs/watermill",
		"watermill-sql":   "github.com/ThreeDotsLabs/watermill-sql/v4",
		"watermill-kafka": "github.com/ThreeDotsLabs/watermill-kafka/v3",
		"sarama":          "github.com/IBM/sarama",
	})
	return err
}

// Fill makes <Table>_watermill, and <Table>_watermill_offsets for the forwarder's place.
func (*Watermill) Fill(ctx context.Context, job Job) error {
	table := watermillTable(job)
	setup, err := watermill.Setup(table, job.Table, job.Topic)
	if err != nil {
		return err
	}
	return runSQL(ctx, job.Rig.DSN(), setup, watermill.Analyze(table))
}

// InsertSQL is what forwarder.Publisher does in the application's transaction.
func (*Watermill) InsertSQL(job Job) string { return watermill.Insert(watermillTable(job), job.Topic) }

// Start starts the forwarder.
func (*Watermill) Start(_ context.Context, job Job) (*rig.Process, error) {
	return rig.Start(peerCommand(job, "watermill", "-table", watermillTable(job)))
}

func watermillTable(job Job) string { return job.Table + "_watermill" }
