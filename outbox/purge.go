package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/router"
)

// PurgeConfig says what may be deleted.
type PurgeConfig struct {
	Config
	// Publisher names the checkpoint, Actor who deletes, for the audit.
	Publisher, Actor string
	// Rules are by source, in the order of Router.Sources.
	Rules []PurgeRule
	// BeforeSlot deletes rows from before the slot, too: it is for when they were
	// published otherwise, by a backfill or another relay.
	BeforeSlot bool
	// Batch rows are deleted by one statement, in a transaction of their own. Default 1000.
	Batch int
	// Pause is between two batches, and between two stretches that are looked through.
	// Negative: none. Default 100 ms.
	Pause time.Duration
	// LockTimeout bounds the wait for rows that somebody else has locked; they stay for
	// the next time. Default 2 s.
	LockTimeout time.Duration
	// Graceful, where it is set, ends the work behind the batch at hand. The context of
	// a call ends it at once; what a batch has not committed is not deleted.
	Graceful context.Context //nolint:containedctx // a second, softer end beside each call's own
	// Progress is called now and then, from the calling goroutine.
	Progress func(PurgeProgress)
}

// PurgeRule is a source's.
type PurgeRule struct {
	// Retention is how old an event must be; 0 deletes whatever is confirmed.
	Retention time.Duration
	// Age is the column that tells; "" is the mapped timestamp, else the time of commit
	// where the server keeps it.
	Age router.Timestamp
}

// PurgeProgress says how far a purge is.
type PurgeProgress struct {
	Table   string
	Deleted int64
	// Looked is how much of the table was looked through: 0 to 100.
	Looked int
}

// Purge deletes confirmed rows from the outbox, over a session of its own. A row may go
// if all of this holds:
//
//   - a transaction wrote it that the ticked-off snapshot of every publisher's checkpoint
//     proves to be published or parked: its id is below the snapshot's xmin (rule 4). No
//     id and no time of the row decides that, so one that commits late stays (trap 28)
//   - it is not from before the slot, of which the checkpoint knows nothing
//   - it is older than the retention
//   - it is not outstanding among the parked events, and no task has still to publish it,
//     or was refused it.
//
// Deleting publishes nothing: publications of outboxes are for inserts alone.
type Purge struct {
	*Reader
	cfg   PurgeConfig
	bound bound
	// keepers are tasks of which some events must stay.
	keepers []int64
	// dry: nothing is to be changed.
	dry bool
}

// PurgeResult is what a purge did, or would do. Its fields are part of --json.
type PurgeResult struct {
	DryRun bool `json:"dry_run"`
	// UpTo: rows of transactions from this id on are not proved to be published, by the
	// checkpoint of HeldBy. 0: none is.
	UpTo   uint64        `json:"up_to_xid"`
	HeldBy string        `json:"held_by"`
	Tables []PurgedTable `json:"tables"`
}

// PurgedTable is one source's part.
type PurgedTable struct {
	Table string `json:"table"`
	// Deleted rows; in a dry run those that would be.
	Deleted int64 `json:"deleted"`
	// Skipped rows were locked by somebody else.
	Skipped int64 `json:"skipped"`
	// Before is how old they had to be, by AgeBy.
	Before *time.Time `json:"before"`
	AgeBy  string     `json:"age_by"`
	// Kept counts the rows that stay, by reason; known in a dry run only.
	Kept map[string]int64 `json:"kept"`
	// Partitions are those that were dropped as a whole, or that stay and why.
	Partitions []PurgedPartition `json:"partitions"`
}

// PurgedPartition is what became of a partition that is old enough.
type PurgedPartition struct {
	Name string `json:"name"`
	Rows int64  `json:"rows"`
	// Dropped, or would be.
	Dropped bool `json:"dropped"`
	// Kept says why it stays: the first reason, and how many rows have one.
	Kept string `json:"kept,omitempty"`
}

// Deleted counts over all tables.
func (r PurgeResult) Deleted() (n int64) {
	for _, t := range r.Tables {
		n += t.Deleted
	}
	return n
}

// OpenPurge connects, looks at the tables and takes the lock that keeps two purges of
// a publisher apart.
func OpenPurge(ctx context.Context, cfg PurgeConfig) (*Purge, error) {
	cfg.Batch = cmp.Or(cfg.Batch, 1000)
	cfg.Pause = cmp.Or(cfg.Pause, 100*time.Millisecond)
	cfg.LockTimeout = cmp.Or(cfg.LockTimeout, 2*time.Second)
	if cfg.Graceful == nil {
		cfg.Graceful = context.Background()
	}
	if len(cfg.Rules) != len(cfg.Router.Sources) {
		return nil, &operr.Error{Class: operr.Internal, Op: "purge", Err: errors.New("not every source has a rule")}
	}
	r, err := Open(ctx, cfg.Config)
	if err != nil {
		return nil, err
	}
	p := &Purge{Reader: r, cfg: cfg}
	if err := p.lock(ctx); err != nil {
		p.Close(ctx)
		return nil, err
	}
	return p, nil
}

// ErrPurging says that another purge of the publisher is under way.
var ErrPurging = errors.New("another purge of this publisher is under way")

func (p *Purge) lock(ctx context.Context) error {
	var mine bool
	err := p.conn.QueryRow(ctx, `SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended('postrider purge ' || $1, 0))`, p.cfg.Publisher).Scan(&mine)
	if err == nil && !mine {
		return &operr.Error{
			Class: operr.Config, Transient: true, Op: "purge for", Subject: fmt.Sprintf("publisher %q", p.cfg.Publisher), Err: ErrPurging,
			Hint: "wait for it to end; a running relay purges by itself where purge.every says so",
		}
	}
	return sqlError("lock", "the purge", err)
}

// DryRun counts what would be deleted, and what stays and why.
func (p *Purge) DryRun(ctx context.Context) (PurgeResult, error) {
	return p.each(ctx, true, p.countRows)
}

// Run deletes. What it did stands in the result beside an error, too.
func (p *Purge) Run(ctx context.Context) (PurgeResult, error) {
	return p.each(ctx, false, p.deleteRows)
}

// each works on one source after the other, under one bound.
func (p *Purge) each(ctx context.Context, dry bool, work func(context.Context, *rule, *PurgedTable) error) (PurgeResult, error) {
	result := PurgeResult{DryRun: dry, Tables: []PurgedTable{}}
	p.dry = dry
	rules, err := p.prepare(ctx, dry)
	if err != nil {
		return result, err
	}
	result.UpTo, result.HeldBy = p.bound.upTo, p.bound.by
	for _, r := range rules {
		result.Tables = append(result.Tables, PurgedTable{
			Table: r.table.name, AgeBy: r.by, Before: r.before, Kept: map[string]int64{}, Partitions: []PurgedPartition{},
		})
		done := &result.Tables[len(result.Tables)-1]
		err := work(ctx, r, done)
		if !dry && len(done.Partitions) == 0 { // dropped partitions were noted one by one
			err = errors.Join(err, p.audit(ctx, r, done))
		}
		if err != nil {
			return result, err
		}
	}
	return result, nil
}

// prepare finds what holds for all: how far the checkpoints are, which tasks keep
// events, and how each table tells the age of a row.
func (p *Purge) prepare(ctx context.Context, dry bool) ([]*rule, error) {
	var err error
	if p.bound, err = p.readBound(ctx); err != nil {
		return nil, err
	}
	if p.keepers, err = p.readKeepers(ctx); err != nil {
		return nil, err
	}
	var rules []*rule
	var problems []error
	for i, t := range p.tables {
		r, err := p.newRule(ctx, t, p.cfg.Rules[i])
		if err == nil && !dry {
			err = p.mayDelete(ctx, t)
		}
		if err != nil {
			problems = append(problems, err)
			continue
		}
		rules = append(rules, r)
	}
	return rules, errors.Join(problems...)
}

// mayDelete asks for the right before anything is looked through.
func (p *Purge) mayDelete(ctx context.Context, t *table) error {
	var may bool
	var role string
	err := p.conn.QueryRow(ctx, `SELECT pg_catalog.has_table_privilege($1::oid, 'DELETE'), current_user`, t.rel.OID).Scan(&may, &role)
	if err != nil || may {
		return sqlError("look at the rights on", "table "+t.name, err)
	}
	return noRight(t, role, nil)
}

func noRight(t *table, role string, cause error) error {
	return &operr.Error{
		Class: operr.Postgres, Op: "delete from", Subject: "table " + t.name,
		Err:  errors.Join(fmt.Errorf("role %q has no right to", role), cause),
		Hint: fmt.Sprintf("GRANT DELETE ON %s TO %s (postrider setup --role … --purge grants it)", t.from, ident(role)),
	}
}

// audit writes down what was deleted from a table, however the work ended.
func (p *Purge) audit(ctx context.Context, r *rule, done *PurgedTable) error {
	if done.Deleted == 0 {
		return nil
	}
	_, err := p.conn.Exec(context.WithoutCancel(ctx), `INSERT INTO postrider.audit (publisher, actor, action, detail)
		VALUES ($1, $2, 'purge', pg_catalog.jsonb_build_object('table', $3::text, 'rows', $4::bigint, 'before', $5::timestamptz, 'age_by', $6::text, 'up_to_xid', $7::bigint))`,
		p.cfg.Publisher, p.cfg.Actor, r.table.name, done.Deleted, r.before, r.by, int64(p.bound.upTo))
	return sqlError("write", "the audit", err)
}

// ended is the error of work that somebody has ended.
func (p *Purge) ended(ctx context.Context) error {
	for _, c := range []context.Context{ctx, p.cfg.Graceful} {
		if c.Err() != nil {
			return &operr.Error{
				Class: operr.DrainIncomplete, Op: "purge", Err: fmt.Errorf("ended early: %w", context.Cause(c)),
				Hint: "the same command goes on; what was deleted is not there any more",
			}
		}
	}
	return nil
}

// rest waits between two statements.
func (p *Purge) rest(ctx context.Context) error {
	if p.cfg.Pause > 0 {
		t := time.NewTimer(p.cfg.Pause)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		case <-p.cfg.Graceful.Done():
		}
	}
	return p.ended(ctx)
}

// atOneMoment is a transaction of one snapshot; next is the first transaction id that it
// knows nothing of: without that, a row of a later transaction would look old.
func (p *Purge) atOneMoment(ctx context.Context, fn func(tx pgx.Tx, next int64) error) error {
	return p.inTx(ctx, readOnly, func(tx pgx.Tx) error {
		next, err := nextXID(ctx, tx)
		if err != nil {
			return err
		}
		return fn(tx, next)
	})
}
