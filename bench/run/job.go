package run

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/bench/contender"
	"github.com/postrider/postrider/bench/outbox"
	"github.com/postrider/postrider/bench/plan"
	"github.com/postrider/postrider/bench/rig"
	"github.com/postrider/postrider/internal/devstack"
)

// job is one contender at work, with all that was made for it.
type job struct {
	contender.Job
	s      *session
	c      contender.Contender
	client *kgo.Client
	kafka  *devstack.Kafka
	// view says that Table is a view of a backlog, and own that the table was made for the job.
	view, own bool

	process *rig.Process
	meter   *rig.Meter
	offsets *rig.Offsets
}

// newJob makes topic, slot and table. b is nil for a job whose events are written while it runs. The caller closes it, after an error too.
func (s *session) newJob(ctx context.Context, step plan.Step, b *backlog) (*job, error) {
	c := s.contenders[step.Contender]
	if c == nil {
		return nil, fmt.Errorf("no contender %s", step.Contender)
	}
	name := jobName(step.Name)
	j := &job{s: s, c: c, kafka: s.rig.Kafka()}
	j.Job = contender.Job{
		Rig: s.rig, Name: name, Slot: name, Topic: name, Partitions: step.Params.Partitions,
		Brokers: s.rig.Kafka().Bootstrap(), LogFile: filepath.Join(s.rig.LogDir(), name+".log"),
	}
	_ = os.Remove(j.LogFile) // of an earlier attempt
	if err := j.makeFolder(); err != nil {
		return j, err
	}
	if err := j.makeTopic(ctx); err != nil {
		return j, err
	}
	if err := j.makeSource(ctx, step, b); err != nil {
		return j, err
	}
	return j, s.rig.Quiet(ctx)
}

// jobName keeps to what PostgreSQL allows for slots and Kafka for topics.
func jobName(step string) string {
	clean := func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}
	return strings.Map(clean, "j/"+step)
}

func (j *job) makeFolder() (err error) {
	if j.WorkDir, err = j.Rig.WorkDir(j.Name); err != nil {
		return err
	}
	j.AdminAddr, err = freeAddr()
	return err
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func (j *job) makeTopic(ctx context.Context) (err error) {
	if t, ok := j.c.(contender.TLS); ok && t.SpeaksTLS() {
		if j.kafka, err = j.Rig.SecureKafka(ctx); err != nil {
			return err
		}
		j.Secure = j.kafka
	}
	if j.client, err = j.kafka.Client(); err != nil {
		return err
	}
	if err := rig.CreateTopic(ctx, j.client, j.Topic, j.Partitions); err != nil {
		return fmt.Errorf("create topic %s: %w", j.Topic, err)
	}
	j.offsets, err = rig.NewOffsets(ctx, j.client, j.Topic, j.Partitions)
	return err
}

func (j *job) makeSource(ctx context.Context, step plan.Step, b *backlog) error {
	if b == nil {
		return j.makeTable(ctx)
	}
	j.Table, j.Publication = b.Table, b.Publication()
	if j.c.Source() == contender.FromSlot {
		return j.Rig.CopySlot(ctx, b.Slot(step.Params.Rows), j.Slot)
	}
	return j.fill(ctx, b.Table, int64(b.Rows-step.Params.Rows))
}

// makeTable is an empty table for events to come.
func (j *job) makeTable(ctx context.Context) error {
	table := j.Name
	if err := outbox.Create(ctx, j.Rig.SQL(), table); err != nil {
		return err
	}
	j.Table, j.Publication, j.own = table, table+"_pub", true
	if j.c.Source() == contender.FromSlot {
		return j.Rig.CreateSlot(ctx, j.Slot)
	}
	return j.fill(ctx, table, 0)
}

// fill gives a contender that reads a table its own copy of the events behind number after.
// The view has xmin and ctid too: some order by them.
func (j *job) fill(ctx context.Context, table string, after int64) error {
	filler, ok := j.c.(contender.OwnTable)
	if !ok {
		return fmt.Errorf("contender %s reads a table but cannot fill it", j.c.Name())
	}
	j.Table, j.view = j.Name+"_v", true
	sql := fmt.Sprintf("CREATE VIEW %s AS SELECT xmin, ctid, t.* FROM %s AS t WHERE aggregate_version > %d", j.Table, table, after)
	if _, err := j.Rig.SQL().Exec(ctx, sql); err != nil {
		return err
	}
	return filler.Fill(ctx, j.Job)
}

// insertSQL writes one event for the contender.
func (j *job) insertSQL() string {
	if own, ok := j.c.(contender.OwnTable); ok {
		return own.InsertSQL(j.Job)
	}
	return fmt.Sprintf("INSERT INTO %s (event_id, aggregate_type, aggregate_id, event_type, payload) VALUES ($1, $2, $3, $4, $5)", j.Table)
}

// start starts the contender and what watches it.
func (j *job) start(ctx context.Context) (err error) {
	broker, err := rig.BrokerPID(j.kafka)
	if err != nil {
		return err
	}
	if j.process, err = j.c.Start(ctx, j.Job); err != nil {
		return err
	}
	j.meter, err = j.Rig.Watch(ctx, rig.MeterOptions{PID: j.process.PID, Broker: broker})
	return err
}

// alive is an error when the contender has ended by itself.
func (j *job) alive() error {
	select {
	case <-j.process.Done():
		return fmt.Errorf("it ended by itself: %w", errors.Join(j.process.Err(), errEnded))
	default:
		return nil
	}
}

var errEnded = errors.New("nothing should have ended it")

// stop ends the contender, which is no error where it has ended.
func (j *job) stop(ctx context.Context) error {
	if j.process == nil {
		return nil
	}
	return j.process.Stop(ctx)
}

// cleanTimeout bounds the removal of what a step made.
const cleanTimeout = 60 * time.Second

// close removes all that was made. It works after the end of ctx too: a run that was stopped leaves nothing behind.
func (j *job) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	var errs []error
	errs = append(errs, j.stop(ctx))
	if j.meter != nil {
		j.meter.Stop()
	}
	if j.client != nil {
		errs = append(errs, rig.DeleteTopic(ctx, j.client, j.Topic))
		j.client.Close()
	}
	if j.Secure != nil {
		errs = append(errs, j.Rig.StopSecureKafka())
	}
	errs = append(errs, j.Rig.DropSlot(ctx, j.Slot), j.dropTables(ctx), os.RemoveAll(j.WorkDir))
	return errors.Join(errs...)
}

// dropTables removes the contender's own tables too: their names begin with Table.
func (j *job) dropTables(ctx context.Context) error {
	conn := j.Rig.SQL()
	if j.view {
		var tables []string
		err := conn.QueryRow(ctx, `SELECT coalesce(array_agg(quote_ident(tablename)), '{}') FROM pg_tables
			WHERE schemaname = 'public' AND strpos(tablename, $1) > 0`, j.Table).Scan(&tables)
		if err != nil {
			return err
		}
		sql := "DROP VIEW IF EXISTS " + j.Table
		for _, t := range tables {
			sql += "; DROP TABLE " + t
		}
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	if j.own {
		return outbox.Drop(ctx, conn, j.Name)
	}
	return nil
}
