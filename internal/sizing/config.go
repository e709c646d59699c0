package sizing

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog"

	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/replication"
)

// Defaults of Config.
const (
	DefaultRows         = 100_000
	DefaultPayload      = 200
	DefaultPerTx        = 1
	DefaultPartitions   = 6
	DefaultRate         = 1000
	DefaultFor          = 10 * time.Second
	DefaultStallTimeout = 30 * time.Second
)

// Config is what a measurement needs.
type Config struct {
	// ConnString reaches the server through any of its databases, from where one more
	// is created; InDatabase gives the same for another database.
	ConnString string
	InDatabase func(database string) string
	// Replication tunes the stream. Its connection string, slot and publications are
	// set by the package.
	Replication replication.Config
	// Kafka says where to publish and how. Of CreateTopics the replication factor and
	// the settings are taken for the topic.
	Kafka publisher.Config

	// Rows of the backlog, each with Payload bytes of JSON, PerTx of them a transaction.
	Rows, Payload, PerTx int
	// Partitions of the topic.
	Partitions int
	// Rate is the events a second of the latency run, which takes For. Rate 0 leaves it out.
	Rate int
	For  time.Duration
	// StallTimeout ends a run in which nothing is acknowledged for so long.
	StallTimeout time.Duration

	// Confirm sees what will be made before anything is; its error ends the run.
	Confirm func(Plan) error
	// Screen shows progress, for people. Terminal says that a line may be drawn over.
	Screen   io.Writer
	Terminal bool
	// Log is the relay's.
	Log zerolog.Logger
}

// Bounds of the flags that the fields come from.
const (
	minRows, maxRows             = 1000, 100_000_000
	minPayload, maxPayload       = 32, 512 << 10
	maxPerTx                     = 1_000_000
	maxPartitions                = 1000
	maxRate                      = 50_000
	minFor, maxFor               = time.Second, 10 * time.Minute
	minStallTime, maxStallTime   = 2 * time.Second, time.Hour // twice the pause between events at --rate 1
	errBoundFormat, rateOrNoRate = "%s is %v; must be from %v to %v", "--rate is %d; must be from 1 to %d, or 0 to leave the latency out"
)

// Validate reports all problems at once, in the words of the command line.
func (c Config) Validate() error {
	var problems []error
	bound := func(flag string, value, lo, hi int) {
		if value < lo || value > hi {
			problems = append(problems, fmt.Errorf(errBoundFormat, flag, value, lo, hi))
		}
	}
	bound("--rows", c.Rows, minRows, maxRows)
	bound("--payload", c.Payload, minPayload, maxPayload)
	bound("--rows-per-transaction", c.PerTx, 1, maxPerTx)
	bound("--partitions", c.Partitions, 1, maxPartitions)
	if c.Rate < 0 || c.Rate > maxRate {
		problems = append(problems, fmt.Errorf(rateOrNoRate, c.Rate, maxRate))
	}
	if c.For < minFor || c.For > maxFor {
		problems = append(problems, fmt.Errorf(errBoundFormat, "--for", c.For, minFor, maxFor))
	}
	if c.StallTimeout < minStallTime || c.StallTimeout > maxStallTime {
		problems = append(problems, fmt.Errorf(errBoundFormat, "--stall-timeout", c.StallTimeout, minStallTime, maxStallTime))
	}
	return errors.Join(problems...)
}

// latencyRows is how many rows the latency run writes.
func (c Config) latencyRows() int { return int(float64(c.Rate) * c.For.Seconds()) }
