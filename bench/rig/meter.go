package rig

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/bench/result"
)

// How often a meter looks. A backend that ends takes its figures with it, so backends are read often.
const (
	meterInterval    = 20 * time.Millisecond
	discoverInterval = 250 * time.Millisecond
	rssInterval      = 500 * time.Millisecond
)

// Cost is what a step took, between Begin and the last look.
type Cost struct {
	CPU, ServerCPU, BrokerCPU result.CPU
	PeakRSS                   int64
	RSS                       []result.Point
}

// MeterOptions name what is watched besides the contender.
type MeterOptions struct {
	// PID is the contender; 0 where there is no process.
	PID int
	// Broker is the broker's process; 0 for none.
	Broker int
	// Backends are PostgreSQL's processes; nil means all that serve others than this program, as they come and go.
	Backends []int
}

// Meter watches processes until Stop.
type Meter struct {
	rig  *Rig
	opts MeterOptions
	conn *pgx.Conn

	mu       sync.Mutex
	began    time.Time
	self     gauge
	broker   gauge
	backends map[int]*gauge
	peak     int64
	rss      []result.Point

	quit chan struct{}
	done sync.WaitGroup
}

// gauge is one process's CPU, of which base does not count.
type gauge struct{ base, last result.CPU }

func (g *gauge) read(pid int) {
	if pid == 0 {
		return
	}
	if cpu, err := ReadCPU(pid); err == nil { // one that is gone keeps its last figures
		g.last = cpu
	}
}

func (g *gauge) used() result.CPU {
	return result.CPU{User: g.last.User - g.base.User, System: g.last.System - g.base.System}
}

// Watch starts a meter. Its seconds count from now; what is used before Begin does not count.
func (r *Rig) Watch(ctx context.Context, opts MeterOptions) (*Meter, error) {
	m := &Meter{rig: r, opts: opts, backends: map[int]*gauge{}, began: time.Now(), quit: make(chan struct{})}
	if opts.Backends == nil {
		conn, err := r.Connect(ctx)
		if err != nil {
			return nil, err
		}
		m.conn = conn
	}
	for _, pid := range opts.Backends {
		m.backends[pid] = &gauge{}
	}
	m.done.Go(func() { m.run(context.WithoutCancel(ctx)) })
	return m, nil
}

func (m *Meter) run(ctx context.Context) {
	tick := time.NewTicker(meterInterval)
	defer tick.Stop()
	var discovered, measured time.Time
	for {
		now := time.Now()
		if m.conn != nil && now.Sub(discovered) >= discoverInterval {
			discovered = now
			m.discover(ctx)
		}
		m.look()
		if now.Sub(measured) >= rssInterval {
			measured = now
			m.measure()
		}
		select {
		case <-tick.C:
		case <-m.quit:
			return
		}
	}
}

// discover finds backends that have come since.
func (m *Meter) discover(ctx context.Context) {
	rows, err := m.conn.Query(ctx, `SELECT pid FROM pg_stat_activity
		WHERE backend_type IN ('client backend', 'walsender') AND application_name <> $1`, ownName)
	if err != nil {
		return // the server is under the step's load, or going down with the run
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, pid := range pids {
		if m.backends[pid] == nil {
			m.backends[pid] = &gauge{}
		}
	}
}

func (m *Meter) look() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for pid, g := range m.backends {
		g.read(pid)
	}
	m.self.read(m.opts.PID)
	m.broker.read(m.opts.Broker)
}

func (m *Meter) measure() {
	if m.opts.PID == 0 {
		return
	}
	s, err := Read(m.opts.PID)
	if err != nil || s.RSS == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.peak = max(m.peak, s.PeakRSS)
	m.rss = append(m.rss, result.Point{T: time.Since(m.began).Seconds(), V: float64(s.RSS)})
}

// Begin is the moment from which on cost counts.
func (m *Meter) Begin() {
	m.look()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, g := range m.backends {
		g.base = g.last
	}
	m.self.base, m.broker.base = m.self.last, m.broker.last
}

// Cost looks once more and tells.
func (m *Meter) Cost() Cost {
	m.look()
	m.measure()
	m.mu.Lock()
	defer m.mu.Unlock()
	c := Cost{CPU: m.self.used(), BrokerCPU: m.broker.used(), PeakRSS: m.peak, RSS: append([]result.Point(nil), m.rss...)}
	for _, g := range m.backends {
		used := g.used()
		c.ServerCPU.User += used.User
		c.ServerCPU.System += used.System
	}
	return c
}

// Stop ends the watch.
func (m *Meter) Stop() {
	close(m.quit)
	m.done.Wait()
	if m.conn != nil {
		m.conn.Close(context.Background())
	}
}
