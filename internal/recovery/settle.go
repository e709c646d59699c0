package recovery

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
)

func (r *Recovery) newComparison(f *Facts, scope Scope, o Options) *comparison {
	c := &comparison{r: r, o: o, c: newCandidates(), floor: math.MaxInt64, headers: idHeaders(r.cfg.Router.Sources), only: o.TopicOnly}
	c.loaded = f.Stored == nil || f.Stored.SystemID != f.System.ID
	if scope == Uncovered {
		// What the row did not cover was published after the row's last event.
		at := f.Stored.UpdatedAt
		if !f.Stored.CommitTime.IsZero() && f.Stored.CommitTime.Before(at) {
			at = f.Stored.CommitTime
		}
		c.floor = at.UnixMilli()
	}
	return c
}

// weigh loads candidates and compares them: those of a task's list, or of the selection.
func (r *Recovery) weigh(ctx context.Context, reader *outbox.Reader, c *comparison, task int64, sel outbox.Selection, method Method) error {
	if err := c.load(ctx, reader, task, sel); err != nil {
		return err
	}
	if method == KeepSlot {
		until, err := r.store.WALEnd(ctx)
		if err == nil {
			err = c.settleStream(ctx, until)
		}
		if err != nil {
			return err
		}
	}
	topics, err := r.topics(ctx, reader, c)
	if err != nil {
		return err
	}
	if !c.o.WithoutTopics {
		if err := c.loadPresent(ctx, reader); err != nil {
			return err
		}
	}
	return c.compare(ctx, topics)
}

// topics are those of the candidates, of all rows of the table, of the routes without a
// field, and those that were named.
func (r *Recovery) topics(ctx context.Context, reader *outbox.Reader, c *comparison) ([]string, error) {
	var list names
	for _, name := range c.c.topics.all {
		list.index(name)
	}
	if err := r.learnTopics(ctx, reader, c); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(c.tablesOf)) {
		list.index(name)
	}
	for _, name := range c.o.Topics {
		list.index(name)
	}
	return list.all, nil
}

// learnTopics finds which tables' events go to which topics.
func (r *Recovery) learnTopics(ctx context.Context, reader *outbox.Reader, c *comparison) error {
	counts, err := reader.Count(ctx, outbox.Selection{})
	if err != nil {
		return err
	}
	for _, g := range counts.Groups {
		if g.Topic != "" && g.Refused == "" {
			c.comesFrom(g.Topic, g.Table)
		}
	}
	for _, src := range r.cfg.Router.Sources {
		static, err := router.New(router.Config{Sources: []router.Source{src}})
		if err != nil {
			return &operr.Error{Class: operr.Config, Op: "read the mapping", Err: err, Hint: "postrider config check"}
		}
		for _, name := range static.StaticTopics() {
			c.comesFrom(name, replication.Table{Schema: src.Schema, Name: src.Table}.String())
		}
	}
	return nil
}

// compare is step 3. Its outcome is one transaction: what is settled leaves the list.
func (r *Recovery) compare(ctx context.Context, reader *outbox.Reader, report *Report, t *task, f *Facts, o Options) error {
	c := r.newComparison(f, t.Detail.Scope, o)
	if listed := t.Detail.Settled; listed != nil {
		c.result.WithoutID, c.result.Shared = listed.WithoutID, listed.Shared
	}
	if err := r.weigh(ctx, reader, c, t.ID, outbox.Selection{}, t.Detail.Method); err != nil {
		return err
	}
	report.Compared, report.Comparison, report.ToPublish = !o.WithoutTopics, &c.result, c.c.groups()
	if err := c.undecided(); err != nil {
		return errors.Join(err, r.fail(ctx, t, err.Error()))
	}
	t.Detail.Settled, t.Detail.Step, t.Detail.Ends = &c.result, stepCompared, c.ends
	return r.inTx(ctx, "store the comparison", func(tx pgx.Tx) error {
		if err := t.keepMissing(ctx, tx, c.c); err != nil {
			return err
		}
		if err := t.renumber(ctx, tx); err != nil {
			return err
		}
		if err := t.save(ctx, tx); err != nil {
			return err
		}
		return r.audit(ctx, tx, "recover.compare", map[string]any{"task": t.ID, "result": c.result})
	})
}

// keepMissing takes what is settled off the list.
func (t *task) keepMissing(ctx context.Context, tx pgx.Tx, c *candidates) error {
	for _, sql := range []string{`SET LOCAL statement_timeout = 0`, `CREATE TEMPORARY TABLE postrider_missing (n bigint NOT NULL) ON COMMIT DROP`} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return err
		}
	}
	i := 0
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"pg_temp", "postrider_missing"}, []string{"n"}, pgx.CopyFromFunc(func() ([]any, error) {
		for ; i < len(c.list); i++ {
			if m := &c.list[i]; m.fate == missing || m.fate == gone { // to be published, or told
				i++
				return []any{m.n}, nil
			}
		}
		return nil, nil
	}))
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `DELETE FROM postrider.task_item i WHERE task = $1 AND NOT EXISTS (SELECT FROM pg_temp.postrider_missing m WHERE m.n = i.n)`, t.ID)
	return err
}

// renumber numbers the list from 1. Below zero first: the numbers are unique.
func (t *task) renumber(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, `UPDATE postrider.task_item i SET n = -v.place FROM (
		SELECT n, row_number() OVER (ORDER BY n) AS place FROM postrider.task_item WHERE task = $1) v WHERE i.task = $1 AND i.n = v.n`, t.ID); err != nil {
		return err
	}
	tag, err := tx.Exec(ctx, `UPDATE postrider.task_item SET n = -n WHERE task = $1`, t.ID)
	t.Total, t.Done, t.Refused = tag.RowsAffected(), 0, 0
	return err
}
