package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/replication"
)

// KeepStreamed keeps the event ids of all rows that come on the slot's stream up to a position,
// as Keep does, and consumes nothing. The slot must not be active. It decodes all WAL
// from the slot's position on.
//
// It is how rows from before the slot are told that were updated since: they look new, and
// do not come on the stream.
func (r *Reader) KeepStreamed(ctx context.Context, name string, cfg replication.Config, upTo event.LSN) (n int64, err error) {
	members, err := r.members(ctx)
	if err != nil {
		return 0, err
	}
	g, ctx := errgroup.WithContext(ctx)
	ids := make(chan rowID, 1024)
	g.Go(func() error {
		defer close(ids)
		return readStream(ctx, cfg, &idHandler{ctx: ctx, reader: r, members: members, upTo: upTo, ids: ids})
	})
	g.Go(func() (err error) {
		n, err = r.keep(ctx, name, func(yield func(rowID) bool) {
			for id := range ids {
				if !yield(id) {
					return
				}
			}
		})
		return err
	})
	return n, g.Wait()
}

// members finds the table of each relation by OID.
func (r *Reader) members(ctx context.Context) (map[uint32]*table, error) {
	found := map[uint32]*table{}
	for _, t := range r.tables {
		found[t.rel.OID] = t
		err := r.inTx(ctx, readOnly, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "SELECT m.rel FROM ("+replication.HoldersSQL+") m", t.rel.OID)
			if err != nil {
				return err
			}
			var oid uint32
			_, err = pgx.ForEachRow(rows, []any{&oid}, func() error {
				found[oid] = t
				return nil
			})
			return err
		})
		if err != nil {
			return nil, sqlError("read the partitions of", "table "+t.name, err)
		}
	}
	return found, nil
}

// errEnough ends the stream where it was to end.
var errEnough = errors.New("the stream was read as far as was asked for")

// readStream reads a slot's stream and confirms nothing.
func readStream(ctx context.Context, cfg replication.Config, h *idHandler) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	h.enough = func() { cancel(errEnough) }
	slot, err := readSlot(ctx, cfg)
	if err != nil {
		return err
	}
	cfg.StillOurs = nil
	session, err := replication.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	stream, err := session.Start(ctx)
	if err != nil {
		session.Close(context.WithoutCancel(ctx))
		return err
	}
	defer stream.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing was confirmed that could be lost
	err = stream.Run(ctx, slot.ConfirmedFlush, h)
	if errors.Is(err, errEnough) || errors.Is(context.Cause(ctx), errEnough) {
		return nil
	}
	return err
}

// readSlot asks over a session of its own: the Reader's is in use.
func readSlot(ctx context.Context, cfg replication.Config) (replication.SlotInfo, error) {
	conn, err := replication.ConnectSQL(ctx, cfg.ConnString, "")
	if err != nil {
		return replication.SlotInfo{}, err
	}
	defer replication.CloseSQL(ctx, conn)
	return replication.ReadSlot(ctx, conn, cfg.Slot)
}

// idHandler hands on the event ids of the sources' rows.
type idHandler struct {
	ctx     context.Context
	reader  *Reader
	members map[uint32]*table
	upTo    event.LSN
	ids     chan<- rowID
	enough  func()

	column int    // of the relation last seen; -1: not of ours
	table  string // it belongs to
	rel    *event.Relation
	open   bool
}

var _ replication.Handler = (*idHandler)(nil)

// Relation does nothing: each row names its own.
func (h *idHandler) Relation(*event.Relation) error { return nil }

func (h *idHandler) Begin(event.LSN, time.Time, uint32) error {
	h.open = true
	return nil
}

func (h *idHandler) Insert(row *event.Row) error {
	if row.Relation != h.rel {
		if err := h.describe(row.Relation); err != nil {
			return err
		}
	}
	if h.column < 0 || row.Values[h.column].Kind != event.Text {
		return nil
	}
	select {
	case h.ids <- rowID{h.table, string(row.Values[h.column].Data)}:
		return nil
	case <-h.ctx.Done():
		return context.Cause(h.ctx)
	}
}

// describe finds the event id's column in a relation.
func (h *idHandler) describe(rel *event.Relation) error {
	h.rel, h.column = rel, -1
	t := h.members[rel.OID]
	for _, named := range h.reader.tables {
		if named.src.Schema == rel.Namespace && named.src.Table == rel.Name {
			t = named
		}
	}
	if t == nil {
		return nil
	}
	h.table = t.name
	if h.column = rel.ColumnIndex(t.src.Mapping.EventID); h.column < 0 {
		return &operr.Error{
			Class: operr.Slot, Op: "read the stream of", Subject: "table " + rel.String(),
			Err:  fmt.Errorf("rows that wait there have no column %q: it was renamed or added since", t.src.Mapping.EventID),
			Hint: "name the column in the mapping as it was, or make the slot anew with postrider setup",
		}
	}
	return nil
}

// Ignored does nothing: an update is what is looked for, and the row shows it.
func (h *idHandler) Ignored(string) {}

func (h *idHandler) Commit(_, end event.LSN, _ time.Time) error {
	h.open = false
	if end >= h.upTo {
		return errEnough
	}
	return nil
}

func (h *idHandler) KeepAlive(walEnd event.LSN) {
	if !h.open && walEnd >= h.upTo {
		h.enough()
	}
}

// InputDrained does nothing: no batch waits.
func (h *idHandler) InputDrained() {}
