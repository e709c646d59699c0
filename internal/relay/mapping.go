package relay

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

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

// firstUserOID is the first OID that is not built in (FirstNormalObjectId). What other
// types are is told on the stream only.
const firstUserOID = 16384

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
		rel, err := l.describe(ctx, t)
		if err != nil {
			return err
		}
		if err := certain(rt.Bind(rel), rel); err != nil {
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

// certain leaves of a bind's problems those that the catalog is enough to prove.
func certain(bound error, rel *event.Relation) error {
	var fault *router.BindError
	if !errors.As(bound, &fault) {
		return bound
	}
	sure := *fault
	sure.Problems = slices.DeleteFunc(slices.Clone(fault.Problems), func(p router.BindProblem) bool {
		i := rel.ColumnIndex(p.Column)
		return i >= 0 && rel.Columns[i].TypeOID >= firstUserOID
	})
	if len(sure.Problems) == 0 {
		return nil
	}
	return &sure
}

// describeSQL gives a table's columns as a Relation message would now. Generated ones
// are sent since 18 only, where a publication says so or lists them.
const describeSQL = `SELECT c.oid, a.attname, a.atttypid, a.atttypmod,
       a.attgenerated <> '' AND NOT (a.attgenerated = 's' AND EXISTS (
         SELECT FROM pg_catalog.pg_publication p WHERE p.pubname = ANY($3) AND pg_catalog.to_jsonb(p) ->> 'pubgencols' = 's'))
  FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`

// describe reads a table from the catalog.
func (l *link) describe(ctx context.Context, t replication.Table) (*event.Relation, error) {
	listed, all := listedColumns(l.gen.publications, t)
	rel := &event.Relation{Namespace: t.Schema, Name: t.Name}
	rows, err := l.sql.conn.Query(ctx, describeSQL, t.Schema, t.Name, l.gen.cfg.Replication.Publications)
	if err == nil {
		var c event.Column
		var generated bool
		_, err = pgx.ForEachRow(rows, []any{&rel.OID, &c.Name, &c.TypeOID, &c.TypeMod, &generated}, func() error {
			if listed[c.Name] || all && !generated {
				rel.Columns = append(rel.Columns, c)
			}
			return nil
		})
	}
	if err != nil {
		return nil, &operr.Error{Class: operr.Postgres, Transient: true, Op: "read the columns of", Subject: "table " + t.String(), Err: err}
	}
	return rel, nil
}

// listedColumns are those that the publications' column lists name; all says that
// one has no list.
func listedColumns(pubs replication.Publications, t replication.Table) (listed map[string]bool, all bool) {
	listed = make(map[string]bool)
	for i := range pubs {
		p, ok := pubs[i].Covers(t)
		if !ok {
			continue
		}
		all = all || p.Columns == ""
		var names []string
		if err := json.Unmarshal([]byte(p.Columns), &names); err == nil { // "" lists none
			for _, name := range names {
				listed[name] = true
			}
		}
	}
	return listed, all
}
