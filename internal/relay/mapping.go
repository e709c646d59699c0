package relay

import (
	"context"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
)

// misfit is a mapping that does not fit its table as the table is now. Rows that were
// written before the table changed still come as they were, so they are published
// first: the run ends when the stream has passed the WAL end of its start.
type misfit struct {
	err error
	end event.LSN
}

// checkMapping holds every source's mapping against its table (case C06). Where
// nothing was ever published that ends the start; else see misfit.
func (l *link) checkMapping(ctx context.Context, stored *checkpoint.Row) error {
	g := l.gen
	rt, err := router.New(g.cfg.Router)
	if err != nil {
		return configError(err)
	}
	var problems []*operr.Error
	for _, t := range g.cfg.tables() {
		rel, err := replication.DescribeTable(ctx, l.sql.conn, t, g.publications)
		if err != nil {
			return err
		}
		if err := router.Certain(rt.Bind(rel), rel); err != nil {
			problems = append(problems, &operr.Error{
				Class: operr.Config, Op: "check mapping of", Subject: "table " + t.String(), Err: err,
				Hint: "correct the source's mapping, or give the table its column back; names are compared exactly",
			})
		}
	}
	if len(problems) == 0 {
		return nil
	}
	err = joinProblems(problems)
	if stored == nil || stored.Events == 0 {
		return err
	}
	tick, terr := l.store.TakeTick(ctx)
	if terr != nil {
		return terr
	}
	g.log.Error().Err(err).Stringer("until", tick.LSN).Msg("the mapping does not fit the table any more; publishing what was written before, then stopping")
	g.misfit = &misfit{err: err, end: tick.LSN}
	return nil
}

// misfitDue ends the run when the rows from before the start are handed on.
func (g *generation) misfitDue() error {
	if g.misfit == nil || event.LSN(g.handedOn.Load()) < g.misfit.end || g.ledger.Unresolved() > 0 {
		return nil
	}
	return g.misfit.err
}
