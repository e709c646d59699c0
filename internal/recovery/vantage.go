package recovery

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/roots"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/replication"
)

// selection is the candidates as the table's reader takes them.
func selection(f *Facts, scope Scope, since *time.Time) outbox.Selection {
	sel := outbox.Selection{}
	if scope == Uncovered {
		sel.NotCovered = f.Stored.Snapshot
	}
	if since != nil {
		sel.Since, sel.Undated = *since, true // what nobody knows the time of may be missing
	}
	return sel
}

// list makes the vantage and the list of candidates at it, and stores both: step 2. What
// an earlier attempt left of either is thrown away.
func (r *Recovery) list(ctx context.Context, reader *outbox.Reader, t *task, f *Facts, o Options) error {
	if _, err := r.conn.Exec(ctx, `DELETE FROM postrider.task_item WHERE task = $1`, t.ID); err != nil {
		return sqlError("clear", "the list of events", err)
	}
	t.Detail.Vantage, t.Detail.Settled, t.Detail.Withheld, t.Snapshot = nil, nil, nil, ""
	t.Total, t.Done, t.Refused = 0, 0, 0
	if t.Detail.Method == KeepSlot {
		return r.listKeeping(ctx, reader, t, f, o)
	}
	return r.listAnew(ctx, reader, t, f, o)
}

// listAnew makes a new slot and reads the table at its snapshot.
func (r *Recovery) listAnew(ctx context.Context, reader *outbox.Reader, t *task, f *Facts, o Options) error {
	if err := r.checkPublications(ctx); err != nil {
		return err
	}
	if f.Slot.Exists {
		if err := r.dropSlot(ctx, t, f.Slot); err != nil {
			return err
		}
	}
	r.progress(Progress{Phase: "make the slot"})
	spec := replication.SlotSpec{
		ConnString: r.cfg.Replication.ConnString, Slot: r.cfg.Replication.Slot,
		Failover: o.Failover || f.Slot.Failover, Limit: o.LockTimeout,
	}
	_, err := replication.CreateSlotFor(ctx, r.conn, spec, func(ctx context.Context, made replication.CreatedSlot, snapshot string) error {
		reader.At(snapshot)
		defer reader.At("")
		planned, err := reader.Plan(ctx, t.ID, selection(f, t.Detail.Scope, o.Since))
		if err != nil {
			return err
		}
		t.Snapshot = made.Snapshot
		v := &vantage{Point: made.ConsistentPoint.String(), Failover: spec.Failover}
		return r.saveList(ctx, t, f, v, planned)
	})
	return err
}

// dropSlot drops the old slot, with a line in the audit before it is gone.
func (r *Recovery) dropSlot(ctx context.Context, t *task, slot replication.SlotInfo) error {
	err := r.inTx(ctx, "note the slot that is dropped", func(tx pgx.Tx) error {
		return r.audit(ctx, tx, "recover.drop_slot", map[string]any{"task": t.ID, "slot": evidenceOfSlot(slot)})
	})
	if err != nil {
		return err
	}
	return replication.DropSlot(ctx, r.conn, slot.Name)
}

// checkPublications: a slot that is older than its publication cannot be read (trap 22).
func (r *Recovery) checkPublications(ctx context.Context) error {
	problems := replication.Check(ctx, r.conn, replication.CheckConfig{Publications: r.cfg.Replication.Publications, Tables: r.tables()})
	for _, p := range problems {
		return p
	}
	return nil
}

func (r *Recovery) tables() (tables []replication.Table) {
	for _, s := range r.cfg.Router.Sources {
		tables = append(tables, replication.Table{Schema: s.Schema, Name: s.Table})
	}
	return tables
}

// listKeeping keeps the slot. The WAL's end is read after the table, so that all that the
// table showed was committed before it.
func (r *Recovery) listKeeping(ctx context.Context, reader *outbox.Reader, t *task, f *Facts, o Options) error {
	r.progress(Progress{Phase: "list the candidates"})
	planned, err := reader.Plan(ctx, t.ID, selection(f, t.Detail.Scope, o.Since))
	if err != nil {
		return err
	}
	end, err := r.store.WALEnd(ctx)
	if err != nil {
		return err
	}
	v := &vantage{Point: f.Slot.ConfirmedFlush.String(), WALEnd: end.String(), Failover: f.Slot.Failover}
	return r.saveList(ctx, t, f, v, planned)
}

func (r *Recovery) saveList(ctx context.Context, t *task, f *Facts, v *vantage, planned outbox.Planned) error {
	v.Slot, v.SystemID, v.Timeline = r.cfg.Replication.Slot, f.System.ID, f.System.Timeline
	t.State, t.Total = "running", planned.Items
	t.Detail.Step, t.Detail.Vantage, t.Detail.Order = stepListed, v, planned.Order
	t.Detail.Settled = &Comparison{WithoutID: planned.WithoutID, Shared: planned.Shared}
	return r.inTx(ctx, "store the list", func(tx pgx.Tx) error {
		if err := t.save(ctx, tx); err != nil {
			return err
		}
		return r.audit(ctx, tx, "recover.list", map[string]any{"task": t.ID, "vantage": v, "candidates": planned.Items, "order": planned.Order})
	})
}

// holds says that the vantage is still what the task has: same server, and the slot
// where it was, with nobody on it. One that was made by hand meanwhile stands elsewhere.
func (v *vantage) holds(f *Facts) bool {
	return v != nil && f.Slot.Exists && !f.Slot.Lost() && f.Slot.Name == v.Slot && f.Slot.ConfirmedFlush.String() == v.Point &&
		f.System.ID == v.SystemID && f.System.Timeline == v.Timeline
}

func (v *vantage) point() (event.LSN, error) {
	lsn, err := event.ParseLSN(v.Point)
	if err != nil {
		return 0, &operr.Error{Class: operr.Internal, Op: "read", Subject: "the task's position", Err: err}
	}
	return lsn, nil
}

// settleStream marks the candidates that come on the stream of a slot that is kept. Until is
// the WAL's end after the table was read.
func (c *comparison) settleStream(ctx context.Context, until event.LSN) error {
	cfg := c.r.cfg.Replication
	c.r.progress(Progress{Phase: "read the slot's stream"})
	// An asynchronous commit is visible before it is on disk, and not decoded before.
	desk := checkpoint.NewDesk(c.r.conn, checkpoint.DeskConfig{Publisher: c.r.cfg.Publisher, Slot: cfg.Slot, Actor: c.r.cfg.Actor})
	if err := desk.AwaitFlush(ctx, until); err != nil {
		return err
	}
	finder, err := c.r.finder(ctx)
	if err != nil {
		return err
	}
	slot, err := replication.CopySlot(ctx, replication.CopyConfig{
		ConnString: cfg.ConnString, AppName: c.r.appName(), Slot: cfg.Slot, Publications: cfg.Publications, MaxRowBytes: cfg.MaxRowBytes,
	})
	if err != nil {
		return err
	}
	defer slot.Close(ctx)
	return slot.Read(ctx, until, &streamed{c: c, ctx: ctx, finder: finder, sources: map[uint32]*source{}})
}

// finder tells which source a relation of the stream belongs to, as the relay does.
func (r *Recovery) finder(ctx context.Context) (*roots.Finder, error) {
	pubs, err := replication.ReadPublications(ctx, r.conn, r.cfg.Replication.Publications)
	if err != nil {
		return nil, err
	}
	finder := roots.New(r.tables(), pubs, roots.Session{
		Do:     func(fn func(*pgx.Conn) error) error { return fn(r.conn) },
		Failed: sqlError, Publications: r.cfg.Replication.Publications,
	}, map[uint32]replication.Table{})
	return finder, finder.Learn(ctx)
}

// source is where the rows of a relation have their event id.
type source struct {
	table  string
	column int // -1: no source's rows
}

// streamed is the handler that reads the stream of a slot that is kept.
type streamed struct {
	c       *comparison
	ctx     context.Context
	finder  *roots.Finder
	sources map[uint32]*source
	events  int64
}

var _ replication.Handler = (*streamed)(nil)

// Relation finds the source that a relation belongs to.
func (s *streamed) Relation(rel *event.Relation) error {
	schema, table, err := s.finder.SourceOf(s.ctx, rel)
	if err != nil {
		return err
	}
	found := &source{table: replication.Table{Schema: schema, Name: table}.String(), column: -1}
	for _, src := range s.c.r.cfg.Router.Sources {
		if src.Schema == schema && src.Table == table {
			found.column = rel.ColumnIndex(src.Mapping.EventID)
		}
	}
	s.sources[rel.OID] = found
	return nil
}

// Insert settles the row's candidates.
func (s *streamed) Insert(row *event.Row) error {
	src := s.sources[row.Relation.OID]
	if src == nil || src.column < 0 || row.Values[src.column].Kind != event.Text {
		return nil
	}
	s.events++
	if s.events%100_000 == 0 {
		s.c.r.progress(Progress{Phase: "read the slot's stream", Done: s.events})
	}
	for m := range s.c.c.withID(row.Values[src.column].Data) {
		if s.c.c.tables.all[m.table] == src.table {
			m.fate = onStream
		}
	}
	return nil
}

// RowTooLarge passes over a row that was not read: it stays a candidate, and is found in
// its topic or published twice.
func (s *streamed) RowTooLarge(*event.Refusal, *event.Relation) error { return nil }

// Begin, Ignored, Commit, KeepAlive and InputDrained have nothing to do.
func (s *streamed) Begin(event.LSN, time.Time, uint32) error     { return nil }
func (s *streamed) Ignored(string)                               {}
func (s *streamed) Commit(event.LSN, event.LSN, time.Time) error { return nil }
func (s *streamed) KeepAlive(event.LSN)                          {}
func (s *streamed) InputDrained()                                {}
