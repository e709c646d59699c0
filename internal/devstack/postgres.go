package devstack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Superuser is the role of DSN. It is trusted without a password; every other
// role must log in with one (scram-sha-256).
const Superuser = "postgres"

// startTimeout bounds how long a server may take until it answers: a second
// usually, many when other work has the machine.
const startTimeout = 2 * time.Minute

// StopMode is PostgreSQL's own word for how hard to stop.
type StopMode string

// Fast ends sessions and writes a checkpoint; Immediate leaves crash recovery to
// the next start.
const (
	Fast      StopMode = "fast"
	Immediate StopMode = "immediate"
)

func (m StopMode) signal() syscall.Signal {
	if m == Immediate {
		return sigQuit
	}
	return sigInterrupt
}

// PostgresOptions says what to start.
type PostgresOptions struct {
	// Version is "" for the machine's newest (else a fetched one), a major
	// ("17"), or an exact version ("16.9").
	Version string
	// Settings go into postgresql.conf over the defaults of this package.
	// ALTER SYSTEM overrides them as usual.
	Settings map[string]string
	// Dir is the folder for data and log, kept at Stop; "" is a temporary one,
	// removed at Stop. A data folder that exists in it is used as it is.
	Dir string
	// Port is 0 for a free one.
	Port int
	// Fsync makes commits durable against a power cut. Without it they are
	// still durable against kill -9 of the server.
	Fsync bool
}

// Postgres is a running server. Its methods are for one goroutine at a time.
type Postgres struct {
	Host    string
	Port    int
	Version string // "15.18"
	Source  string // where the binaries come from
	BinDir  string // initdb, postgres, pg_ctl; Debian's also pg_recvlogical, pg_basebackup

	opts PostgresOptions
	user *serverUser
	work *workdir
	proc *process
}

// StartPostgres starts a server and returns when it answers.
func StartPostgres(ctx context.Context, opts PostgresOptions) (*Postgres, error) {
	bin, err := findPostgres(ctx, opts.Version)
	if err != nil {
		return nil, err
	}
	user, err := unprivilegedUser()
	if err != nil {
		return nil, err
	}
	port := opts.Port
	if port == 0 {
		if port, err = freePort(); err != nil {
			return nil, err
		}
	}
	work, err := newWorkdir(opts.Dir, "postgres")
	if err != nil {
		return nil, err
	}
	p := &Postgres{
		Host: host, Port: port, Version: bin.version, Source: bin.source, BinDir: bin.dir,
		opts: opts, user: user, work: work,
	}
	if err := p.initdb(ctx); err != nil {
		return nil, errors.Join(err, work.remove())
	}
	if err := p.Start(ctx); err != nil {
		return nil, errors.Join(err, work.remove())
	}
	return p, nil
}

// DSN connects as Superuser to the database "postgres".
func (p *Postgres) DSN() string { return p.DatabaseDSN("postgres") }

// DatabaseDSN connects as Superuser to the named database.
func (p *Postgres) DatabaseDSN(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.User(Superuser),
		Host:     address(p.Port),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// LogFile is the server's log.
func (p *Postgres) LogFile() string { return p.work.join("postgres.log") }

// DataDir is the server's data folder.
func (p *Postgres) DataDir() string { return p.work.join("data") }

// PID is the postmaster's process id; 0 when the server is down.
func (p *Postgres) PID() int {
	if p.proc == nil {
		return 0
	}
	return p.proc.pid
}

// Set changes a setting of postgresql.conf from the next Start on.
func (p *Postgres) Set(name, value string) {
	p.opts.Settings = maps.Clone(p.opts.Settings)
	if p.opts.Settings == nil {
		p.opts.Settings = map[string]string{}
	}
	p.opts.Settings[name] = value
}

// Start starts a server that Halt or Kill has ended, on the same port and data.
func (p *Postgres) Start(ctx context.Context) error {
	if p.proc != nil && !p.proc.exited() {
		return errors.New("PostgreSQL is running already")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("start timed out after %s", startTimeout))
	defer cancel()
	if err := p.configure(); err != nil {
		return err
	}
	for {
		proc, err := p.command("postgres", "-D", p.DataDir()).start()
		if err != nil {
			return err
		}
		p.proc = proc
		if err := p.writePID(); err != nil {
			return err
		}
		err = proc.waitReady(ctx, "PostgreSQL "+p.Version, p.LogFile(), p.ping)
		if err == nil {
			return nil
		}
		// After Kill the children of the dead postmaster hold its shared memory
		// for some milliseconds more; the server then refuses to start.
		if !proc.exited() || ctx.Err() != nil || !strings.Contains(err.Error(), "shared memory block") {
			return errors.Join(err, proc.stop(Immediate.signal(), 5*time.Second))
		}
	}
}

// Halt stops the server and keeps its data for Start.
func (p *Postgres) Halt(mode StopMode) error {
	if p.proc == nil || p.proc.exited() {
		return nil
	}
	defer os.Remove(p.pidFile())
	return p.proc.stop(mode.signal(), 60*time.Second)
}

// Stop stops the server for good and removes a temporary folder. It tolerates a
// second call and a server that is down.
func (p *Postgres) Stop(mode StopMode) error {
	return errors.Join(p.Halt(mode), p.work.remove())
}

// Restart is Halt and Start.
func (p *Postgres) Restart(ctx context.Context, mode StopMode) error {
	if err := p.Halt(mode); err != nil {
		return err
	}
	return p.Start(ctx)
}

// Kill ends the postmaster with SIGKILL; its children end by themselves when
// they notice. Start recovers the data.
func (p *Postgres) Kill() error {
	if p.proc == nil || p.proc.exited() {
		return nil
	}
	defer os.Remove(p.pidFile())
	return p.proc.stop(sigKill, 10*time.Second)
}

// ping opens and closes a session.
func (p *Postgres) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.DSN())
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// initdb makes the data folder where there is none.
func (p *Postgres) initdb(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(p.DataDir(), "PG_VERSION")); err == nil {
		return nil
	}
	for _, dir := range []string{p.DataDir(), p.work.join("socket")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := p.user.own(dir); err != nil {
			return err
		}
	}
	err := p.command("initdb", "-D", p.DataDir(), "-U", Superuser, "--auth=trust",
		"--encoding=UTF8", "--locale=C", "--no-sync").run(ctx)
	if err != nil {
		return fmt.Errorf("initdb of PostgreSQL %s: %w", p.Version, err)
	}
	return os.WriteFile(filepath.Join(p.DataDir(), "pg_hba.conf"), []byte(hba), 0o644)
}

// hba trusts the superuser, so that no test needs a secret, and asks everybody
// else for a password, so that tests of wrong credentials mean something.
const hba = `local all         all                    trust
host  all         postgres  127.0.0.1/32 trust
host  replication postgres  127.0.0.1/32 trust
host  all         all       127.0.0.1/32 scram-sha-256
host  replication all       127.0.0.1/32 scram-sha-256
`

// command runs one of the server's programs under the server's user.
func (p *Postgres) command(name string, args ...string) command {
	return command{
		name: filepath.Join(p.BinDir, name), args: args, dir: p.work.path,
		env:     []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC", "HOME=" + p.work.path},
		logFile: p.LogFile(), user: p.user, orphanSignal: Fast.signal(),
	}
}

// pidFile is for the janitor of systems without a parent-death signal.
func (p *Postgres) pidFile() string { return p.work.join("server.pid") }

func (p *Postgres) writePID() error {
	return os.WriteFile(p.pidFile(), []byte(strconv.Itoa(p.proc.pid)+"\n"), 0o644)
}

// configure writes postgresql.conf whole, at every start. A file rather than
// command-line options: ALTER SYSTEM could not override those.
func (p *Postgres) configure() error {
	socket := p.work.join("socket")
	if len(socket) > 80 { // the kernel's limit is 107 with the file's name
		socket = ""
	}
	settings := map[string]string{
		"listen_addresses":           host,
		"port":                       strconv.Itoa(p.Port),
		"unix_socket_directories":    socket,
		"wal_level":                  "logical",
		"max_connections":            "200",
		"max_wal_senders":            "50",
		"max_replication_slots":      "50",
		"max_prepared_transactions":  "10",
		"track_commit_timestamp":     "on",
		"shared_buffers":             "64MB",
		"timezone":                   "UTC",
		"log_timezone":               "UTC",
		"log_line_prefix":            "%m [%p] %q%u@%d/%a ",
		"fsync":                      onOff(p.opts.Fsync),
		"default_text_search_config": "pg_catalog.english",
	}
	maps.Copy(settings, p.opts.Settings)
	var b strings.Builder
	b.WriteString("# Written at every start by postrider's devstack.\n")
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
	}
	return os.WriteFile(filepath.Join(p.DataDir(), "postgresql.conf"), []byte(b.String()), 0o644)
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}
