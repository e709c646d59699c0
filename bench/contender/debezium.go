package contender

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/bench/peers/debezium"
	"github.com/postrider/postrider/bench/rig"
)

// Debezium is the connector for PostgreSQL with the Outbox Event Router in Kafka Connect (standalone). Without Tuned it has the settings
// that it comes with; Tuned adds what its documentation offers for throughput and latency (peers/debezium has the list and what
// else was tried). Both keep the payload's bytes, since StringConverter writes the text of the column. Its producer has
// acks=all, one request in flight and no idempotence, which is Connect's default. The JVM warms up in the first ten to twenty
// seconds of a drain, so a drain of fewer rows shows less than it can do.
type Debezium struct {
	Tuned bool

	java, jars string
}

// Name is "debezium" or "debezium-tuned".
func (d *Debezium) Name() string {
	if d.Tuned {
		return "debezium-tuned"
	}
	return "debezium"
}

// Describe gives the settings.
func (d *Debezium) Describe() string {
	text := "Connect standalone, Outbox Event Router, pgoutput, StringConverter, snapshot.mode=no_data, " + debezium.JVM(d.Tuned)
	if d.Tuned {
		return text + "; " + debezium.TunedText()
	}
	return text + "; everything else at its default"
}

// Versions are Debezium's and Connect's.
func (*Debezium) Versions() map[string]string {
	return map[string]string{"debezium": debezium.Version, "connect": debezium.ConnectVersion}
}

// Source is a slot.
func (*Debezium) Source() Source { return FromSlot }

// Prepare fetches the jars. The error is debezium.ErrNoJava where this machine has no Java or no Maven.
func (d *Debezium) Prepare(ctx context.Context, _ *rig.Rig) (err error) {
	if d.java, err = debezium.Java(ctx); err != nil {
		return err
	}
	d.jars, err = debezium.Jars(ctx)
	return err
}

// Start starts a worker with the one connector.
func (d *Debezium) Start(_ context.Context, job Job) (*rig.Process, error) {
	c, err := d.command(job.Rig.DSN(), job)
	if err != nil {
		return nil, err
	}
	return rig.Start(c)
}

func (d *Debezium) command(dsn string, job Job) (rig.Command, error) {
	conn, err := pgx.ParseConfig(dsn)
	if err != nil {
		return rig.Command{}, fmt.Errorf("DSN: %w", err)
	}
	args, err := debezium.Write(debezium.Options{
		Dir:  job.WorkDir,
		Host: conn.Host, Port: int(conn.Port), User: conn.User, Password: conn.Password, Database: conn.Database,
		Slot: job.Slot, Publication: job.Publication, Table: "public." + job.Table,
		Brokers: job.Brokers, Topic: job.Topic, Tuned: d.Tuned,
	}, d.jars)
	return rig.Command{Path: d.java, Args: args, Dir: job.WorkDir, LogFile: job.LogFile}, err
}
