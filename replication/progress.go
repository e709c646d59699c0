package replication

import (
	"time"

	"github.com/postrider/postrider/event"
)

// progress stands in front of the handler: it notes how far the stream has come
// (before the handler's call, which may already confirm) and marks the
// handler's errors, which this package cannot judge.
type progress struct {
	Handler
	feedback *feedback
}

var (
	_ RowRefuser  = (*progress)(nil)
	_ TypeDefiner = (*progress)(nil)
)

// handlerError marks an error that the handler gave.
type handlerError struct{ error }

func marked(err error) error {
	if err == nil {
		return nil
	}
	return handlerError{err}
}

func (p *progress) Relation(rel *event.Relation) error { return marked(p.Handler.Relation(rel)) }

func (p *progress) Begin(commit event.LSN, at time.Time, xid uint32) error {
	return marked(p.Handler.Begin(commit, at, xid))
}

func (p *progress) Insert(row *event.Row) error { return marked(p.Handler.Insert(row)) }

func (p *progress) Commit(commit, end event.LSN, at time.Time) error {
	raise(&p.feedback.seen, end)
	return marked(p.Handler.Commit(commit, end, at))
}

func (p *progress) KeepAlive(walEnd event.LSN) {
	raise(&p.feedback.seen, walEnd)
	p.Handler.KeepAlive(walEnd)
}

// DefineType tells the handler where it wants to be told.
func (p *progress) DefineType(oid uint32, schema, name string) {
	if t, ok := p.Handler.(TypeDefiner); ok {
		t.DefineType(oid, schema, name)
	}
}

// RowTooLarge asks the handler where it wants to be asked.
func (p *progress) RowTooLarge(refusal *event.Refusal, rel *event.Relation) error {
	if r, ok := p.Handler.(RowRefuser); ok {
		return marked(r.RowTooLarge(refusal, rel))
	}
	return marked(refusal)
}
