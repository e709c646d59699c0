// Package rig is the bench that contenders run on: real PostgreSQL, real Kafka, processes and what they cost.
package rig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/devstack"
)

// Options say where a rig stands.
type Options struct {
	// Root is the folder of Postrider's source.
	Root string
	// Dir keeps results, logs and built programs. The servers' data lies below it too, in a temporary folder, where
	// PostgreSQL's user can get there.
	Dir string
}

// Rig is the servers of a run. They end with this process, whatever ends it. Its methods are for one goroutine at a time.
type Rig struct {
	root, dir string

	pg    *devstack.Postgres
	kafka *devstack.Kafka
	// conn is the session for set-up and observation.
	conn   *pgx.Conn
	client *kgo.Client
	// secure is the broker of steps with TLS, started for them alone.
	secure *devstack.Kafka
	tlsCA  string
}

// New is a rig without servers: enough for Contender.Prepare.
func New(opts Options) (*Rig, error) {
	root, err := filepath.Abs(opts.Root)
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, err
	}
	r := &Rig{root: root, dir: dir}
	for _, sub := range []string{r.BinDir(), r.LogDir(), r.tmpDir()} {
		if err := os.MkdirAll(sub, 0o755); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Start starts PostgreSQL and Kafka.
func (r *Rig) Start(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	if err := r.useTempDir(); err != nil {
		return err
	}
	if r.pg, err = startPostgres(ctx); err != nil {
		return err
	}
	if r.conn, err = r.Connect(ctx); err != nil {
		return err
	}
	if r.tlsCA, err = enableTLS(ctx, r.pg, r.conn); err != nil {
		return err
	}
	if r.kafka, err = startKafka(ctx, false); err != nil {
		return err
	}
	r.client, err = r.Client()
	return err
}

// useTempDir lets the servers' data lie in Dir. PostgreSQL runs as another user where we are root, and a folder in root's home is
// closed to it: then the data stays in the system's temporary folder.
func (r *Rig) useTempDir() error {
	for dir := r.tmpDir(); dir != "/"; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if os.Geteuid() == 0 && info.Mode()&0o001 == 0 {
			return nil
		}
	}
	return os.Setenv("TMPDIR", r.tmpDir())
}

// Close stops the servers and removes their data.
func (r *Rig) Close() error {
	var errs []error
	if r.client != nil {
		r.client.Close()
	}
	if r.conn != nil {
		_ = r.conn.Close(context.Background()) // the server is stopped next
	}
	errs = append(errs, r.StopSecureKafka())
	if r.kafka != nil {
		errs = append(errs, r.kafka.Stop())
	}
	if r.pg != nil {
		errs = append(errs, r.pg.Stop(devstack.Immediate))
	}
	return errors.Join(errs...)
}

// Root is the folder of Postrider's source.
func (r *Rig) Root() string { return r.root }

// Dir is the folder of the run.
func (r *Rig) Dir() string { return r.dir }

// BinDir is where built programs go; it is kept between runs.
func (r *Rig) BinDir() string { return filepath.Join(r.dir, "bin") }

// LogDir is where contenders' logs go.
func (r *Rig) LogDir() string { return filepath.Join(r.dir, "log") }

func (r *Rig) tmpDir() string { return filepath.Join(r.dir, "tmp") }

// DSN connects to the database with the outbox tables, as a superuser that needs no password, without TLS.
func (r *Rig) DSN() string { return r.pg.DSN() }

// SQL is the session for set-up and observation.
func (r *Rig) SQL() *pgx.Conn { return r.conn }

// Kafka is the plain broker.
func (r *Rig) Kafka() *devstack.Kafka { return r.kafka }

// Postgres is the server.
func (r *Rig) Postgres() *devstack.Postgres { return r.pg }

// WorkDir makes an empty folder for a job.
func (r *Rig) WorkDir(job string) (string, error) {
	dir := filepath.Join(r.tmpDir(), "job-"+job)
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// FindRoot looks for Postrider's source from dir upwards.
func FindRoot(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for {
		_, err := os.Stat(filepath.Join(dir, "cmd", "postrider", "main.go"))
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no folder above holds Postrider's source (cmd/postrider); run it there")
		}
		dir = filepath.Dir(dir)
	}
}

// Lock keeps a second run out of the folder, and removes what a run that was killed has left in it. The lock ends with the process.
func (r *Rig) Lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(r.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("another run uses %s: %w", r.dir, err)
	}
	if err := os.RemoveAll(r.tmpDir()); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, os.MkdirAll(r.tmpDir(), 0o755)
}
