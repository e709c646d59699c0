package relay

import (
	"context"
	"errors"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/facts"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/replication"
)

// check runs the start checks and holds the publications against what was accepted.
func (l *link) check(ctx context.Context) error {
	g := l.gen
	problems := replication.Check(ctx, l.sql.conn, replication.CheckConfig{
		Slot: g.cfg.Replication.Slot, Publications: g.cfg.Replication.Publications, Tables: g.cfg.tables(),
	})
	switch {
	case len(problems) == 0:
	case l.sql.conn.IsClosed():
		// The first question that found the session broken; the others are its echo.
		return transientOf(problems)
	default:
		if err := l.cutOff(ctx, problems); err != nil {
			return err
		}
		return joinProblems(l.withPosition(ctx, problems))
	}
	now, err := replication.ReadPublications(ctx, l.sql.conn, g.cfg.Replication.Publications)
	if err != nil {
		return err
	}
	if g.publications == nil {
		g.publications = now
		return nil
	}
	return l.samePublications(now)
}

// cutOff: what is wrong with the slot may be what a recovery has left that was cut off, and
// is to be taken up.
func (l *link) cutOff(ctx context.Context, problems []*operr.Error) error {
	for _, p := range problems {
		if p.Class != operr.Slot {
			continue
		}
		if err := l.noOpenTask(ctx); operr.ClassOf(err) == operr.Slot {
			return err
		}
	}
	return nil
}

// withPosition words the problem of a slot that is missing or lost by what is stored:
// since when events may be missing, and the command that goes on from there (case C32, trap 10).
func (l *link) withPosition(ctx context.Context, problems []*operr.Error) []*operr.Error {
	slot, err := replication.ReadSlot(ctx, l.sql.conn, l.gen.cfg.Replication.Slot)
	if err != nil || slot.Exists && !slot.Lost() {
		return problems
	}
	stored, err := l.store.Load(ctx)
	if err != nil {
		return problems
	}
	_, err = checkpoint.Decide(stored, facts.Slot(slot), checkpoint.System{}, nil)
	var worded *operr.Error
	if !errors.As(err, &worded) {
		return problems
	}
	for i, p := range problems {
		if p.Class == operr.Slot {
			problems[i] = worded
		}
	}
	return problems
}

func (l *link) samePublications(now replication.Publications) error {
	changed := l.gen.publications.Changed(now, l.gen.cfg.tables())
	if changed == "" {
		return nil
	}
	return &operr.Error{
		Class: operr.Postgres, Op: "compare the publication with what was accepted at start",
		Err:  errors.New(changed),
		Hint: "restore the publication; rows that were written while it was different may be missing from the stream, so compare table and topic before restarting",
	}
}

// transientOf is the first problem that time heals, or else the first.
func transientOf(problems []*operr.Error) error {
	for _, p := range problems {
		if p.Transient {
			return p
		}
	}
	return problems[0]
}

// joinProblems keeps the class and the hint of the first problem that time does not
// heal, and names all.
func joinProblems(problems []*operr.Error) error {
	first := problems[0]
	all := make([]error, len(problems))
	for i, p := range problems {
		all[i] = p
		if first.Transient && !p.Transient {
			first = p
		}
	}
	if len(all) == 1 {
		return first
	}
	return &operr.Error{Class: first.Class, Op: "start checks", Hint: first.Hint, Transient: first.Transient, Err: errors.Join(all...)}
}
