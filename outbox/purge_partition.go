package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/operr"
)

// partition is a part of a table that may be dropped as a whole.
type partition struct {
	oid          uint32
	schema, name string
	// bound is FOR VALUES … as the catalog writes it.
	bound string
	// pending: its detaching was begun and cut off.
	pending bool
	// detached by an earlier purge, which did not come to dropping it.
	detached bool
}

func (p *partition) sql() string { return pgx.Identifier{p.schema, p.name}.Sanitize() }

func (p *partition) String() string { return p.schema + "." + p.name }

// DryRunPartitions says which partitions RunPartitions would drop.
func (p *Purge) DryRunPartitions(ctx context.Context) (PurgeResult, error) {
	return p.each(ctx, true, p.dropPartitions)
}

// RunPartitions drops partitions of tables that are partitioned by range of time: those
// that end before the retention begins, and of which every row may go.
//
// A partition is detached concurrently, which blocks nobody, then locked, so that
// nothing can be written to it any more, then looked through again. If a row was
// written meanwhile that must stay it is attached again. Cut off anywhere, the next
// call goes on; until then the rows are in a table of their own. The role must own the
// table.
func (p *Purge) RunPartitions(ctx context.Context) (PurgeResult, error) {
	return p.each(ctx, false, p.dropPartitions)
}

func (p *Purge) dropPartitions(ctx context.Context, r *rule, into *PurgedTable) error {
	if err := p.partitionedByTime(ctx, r.table); err != nil {
		return err
	}
	parts, err := p.partitions(ctx, r)
	if err != nil {
		return err
	}
	dry := p.dry
	if !dry {
		if err := p.mayDetach(ctx, r.table, parts); err != nil {
			return err
		}
	}
	for i := range parts {
		if err := p.ended(ctx); err != nil {
			return err
		}
		done, err := p.partition(ctx, r, &parts[i], dry)
		into.Partitions = append(into.Partitions, done)
		if done.Dropped {
			into.Deleted += done.Rows
		}
		if err != nil {
			return err
		}
		if p.cfg.Progress != nil {
			p.cfg.Progress(PurgeProgress{Table: r.table.name, Deleted: into.Deleted, Looked: 100 * (i + 1) / len(parts)})
		}
	}
	return nil
}

// partition looks at one and drops it if it may go.
func (p *Purge) partition(ctx context.Context, r *rule, part *partition, dry bool) (PurgedPartition, error) {
	done := PurgedPartition{Name: part.String()}
	counted := PurgedTable{Kept: map[string]int64{}}
	err := p.atOneMoment(ctx, func(tx pgx.Tx, next int64) error {
		return p.verdicts(ctx, tx, r, part.sql(), next, &counted)
	})
	if err != nil {
		return done, sqlError("look through", "partition "+part.String(), err)
	}
	done.Rows, done.Kept = counted.Deleted, keptText(counted.Kept)
	switch {
	case done.Kept != "" && !part.detached && !part.pending:
		return done, nil
	case dry:
		done.Dropped = done.Kept == ""
		return done, nil
	}
	if err := p.detach(ctx, r.table, part); err != nil {
		return done, err
	}
	return p.dropOrAttach(ctx, r, part, done)
}

// dropOrAttach ends what detach began.
func (p *Purge) dropOrAttach(ctx context.Context, r *rule, part *partition, done PurgedPartition) (PurgedPartition, error) {
	kept, err := p.drop(ctx, r, part, &done)
	if err == nil && kept == "" {
		done.Dropped, done.Kept = true, ""
		return done, nil
	}
	done.Kept = cmp.Or(kept, "it could not be dropped")
	if attached := p.attach(ctx, r.table, part); attached != nil {
		return done, errors.Join(err, attached)
	}
	return done, err
}

func keptText(kept map[string]int64) string {
	var all []string
	for reason, n := range kept {
		all = append(all, fmt.Sprintf("%s: %d", reason, n))
	}
	slices.Sort(all)
	text := ""
	for _, one := range all {
		if text != "" {
			text += ", "
		}
		text += one
	}
	return text
}

const strategySQL = `SELECT EXISTS (SELECT FROM pg_catalog.pg_partitioned_table WHERE partrelid = $1),
       coalesce((SELECT p.partstrat = 'r' AND p.partnatts = 1 AND y.oid IN (1184, 1114, 1082) FROM pg_catalog.pg_partitioned_table p
         JOIN pg_catalog.pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0] JOIN pg_catalog.pg_type y ON y.oid = a.atttypid
        WHERE p.partrelid = $1), false),
       EXISTS (SELECT FROM pg_catalog.pg_partitioned_table WHERE partrelid = $1 AND partdefid <> 0)`

func (p *Purge) partitionedByTime(ctx context.Context, t *table) error {
	var partitioned, byTime, hasDefault bool
	if err := p.conn.QueryRow(ctx, strategySQL, t.rel.OID).Scan(&partitioned, &byTime, &hasDefault); err != nil {
		return sqlError("look at the partitions of", "table "+t.name, err)
	}
	var problem string
	switch {
	case !partitioned:
		problem = "it is not partitioned"
	case !byTime:
		problem = "it is not partitioned by range of one column of type timestamptz, timestamp or date"
	case hasDefault:
		problem = "it has a default partition, and from such a table PostgreSQL detaches nothing without blocking everybody"
	default:
		return nil
	}
	return &operr.Error{
		Class: operr.Config, Op: "drop partitions of", Subject: "table " + t.name, Err: errors.New(problem),
		Hint: "postrider purge without --partitions, which deletes rows",
	}
}

// The bounds are written by the session's pinned settings, and read by them again. A
// partition without an end, or one that is partitioned itself, is not looked at.
const partitionsSQL = `SELECT c.oid, n.nspname, c.relname, pg_catalog.pg_get_expr(c.relpartbound, c.oid), i.inhdetachpending, false
  FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE i.inhparent = $1 AND c.relkind = 'r'
   AND ((pg_catalog.regexp_match(pg_catalog.pg_get_expr(c.relpartbound, c.oid), ' TO \(''([^'']+)''\)$'))[1]::timestamptz <= $2 OR i.inhdetachpending)
 ORDER BY (pg_catalog.regexp_match(pg_catalog.pg_get_expr(c.relpartbound, c.oid), ' TO \(''([^'']+)''\)$'))[1]::timestamptz`

// Those of which the audit says that they were detached, and nothing after that.
const detachedSQL = `SELECT c.oid, n.nspname, c.relname, a.detail ->> 'bound', false, true
  FROM postrider.audit a JOIN pg_catalog.pg_class c ON c.oid = (a.detail ->> 'oid')::oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE a.action = 'purge.detach' AND a.publisher = $1 AND a.detail ->> 'table' = $2 AND NOT c.relispartition AND c.relkind = 'r'
   AND NOT EXISTS (SELECT FROM postrider.audit b WHERE b.id > a.id AND b.publisher = $1 AND b.action IN ('purge.drop', 'purge.attach', 'purge.detach')
         AND b.detail ->> 'oid' = a.detail ->> 'oid')
 ORDER BY a.id`

// partitions gives those that are old enough by their bounds, oldest first, and before
// them what an earlier purge has left.
func (p *Purge) partitions(ctx context.Context, r *rule) ([]partition, error) {
	var before time.Time
	if r.before != nil {
		before = *r.before
	} else if err := p.conn.QueryRow(ctx, `SELECT pg_catalog.clock_timestamp()`).Scan(&before); err != nil {
		return nil, sqlError("read", "the time", err)
	}
	var parts []partition
	for _, look := range []struct {
		sql  string
		args []any
	}{{detachedSQL, []any{p.cfg.Publisher, r.table.name}}, {partitionsSQL, []any{r.table.rel.OID, before}}} {
		rows, err := p.conn.Query(ctx, look.sql, look.args...)
		var found []partition
		if err == nil {
			found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (part partition, err error) {
				err = row.Scan(&part.oid, &part.schema, &part.name, &part.bound, &part.pending, &part.detached)
				return part, err
			})
		}
		if err != nil {
			return nil, sqlError("list the partitions of", "table "+r.table.name, err)
		}
		parts = append(parts, found...)
	}
	return parts, nil
}

// mayDetach asks who owns the table, before anything is begun.
func (p *Purge) mayDetach(ctx context.Context, t *table, parts []partition) error {
	oids := []uint32{t.rel.OID}
	for i := range parts {
		oids = append(oids, parts[i].oid)
	}
	var role string
	var stranger *string
	err := p.conn.QueryRow(ctx, `SELECT current_user, (SELECT min(c.oid::pg_catalog.regclass::text) FROM pg_catalog.pg_class c
		WHERE c.oid = ANY($1::oid[]) AND NOT pg_catalog.pg_has_role(c.relowner, 'USAGE'))`, oids).Scan(&role, &stranger)
	if err != nil || stranger == nil {
		return sqlError("look at the owner of", "table "+t.name, err)
	}
	return &operr.Error{
		Class: operr.Postgres, Op: "drop partitions of", Subject: "table " + t.name,
		Err:  fmt.Errorf("role %q does not own %s, and PostgreSQL lets nobody else detach or drop it", role, *stranger),
		Hint: "run it with a configuration whose role owns the table, from cron for instance; the relay's own role needs no more rights",
	}
}

// detach takes the partition out of the table. It waits for everybody who uses the table,
// and blocks nobody.
func (p *Purge) detach(ctx context.Context, t *table, part *partition) error {
	if part.detached {
		return nil
	}
	how := "CONCURRENTLY"
	if part.pending {
		how = "FINALIZE"
	}
	if err := p.note(ctx, p.conn, "purge.detach", t, part, 0); err != nil {
		return err
	}
	_, err := p.conn.Exec(ctx, fmt.Sprintf("ALTER TABLE %s DETACH PARTITION %s %s", t.from, part.sql(), how))
	return sqlError("detach", "partition "+part.String(), err)
}

// drop looks through the detached table again, under a lock that lets nobody write to it,
// and drops it. kept says why it does not.
func (p *Purge) drop(ctx context.Context, r *rule, part *partition, done *PurgedPartition) (kept string, err error) {
	opts := pgx.TxOptions{BeginQuery: fmt.Sprintf("begin isolation level repeatable read; set local lock_timeout = %d", p.cfg.LockTimeout.Milliseconds())}
	err = pgx.BeginTxFunc(ctx, p.conn, opts, func(tx pgx.Tx) error {
		// The lock is taken before the snapshot: what was committed before it is seen.
		if _, err := tx.Exec(ctx, "LOCK TABLE "+part.sql()+" IN ACCESS EXCLUSIVE MODE", pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		next, err := nextXID(ctx, tx)
		if err != nil {
			return err
		}
		counted := PurgedTable{Kept: map[string]int64{}}
		if err := p.verdicts(ctx, tx, r, part.sql(), next, &counted); err != nil {
			return err
		}
		done.Rows = counted.Deleted
		if kept = keptText(counted.Kept); kept != "" {
			return nil
		}
		if _, err := tx.Exec(ctx, "DROP TABLE "+part.sql()); err != nil {
			return err
		}
		return p.note(ctx, tx, "purge.drop", r.table, part, counted.Deleted)
	})
	return kept, sqlError("drop", "the detached partition "+part.String(), err)
}

// attach puts the partition back.
func (p *Purge) attach(ctx context.Context, t *table, part *partition) error {
	ctx = context.WithoutCancel(ctx) // whatever ended the work: rows are missing from the table
	_, err := p.conn.Exec(ctx, fmt.Sprintf("ALTER TABLE %s ATTACH PARTITION %s %s", t.from, part.sql(), part.bound))
	if err == nil {
		return p.note(ctx, p.conn, "purge.attach", t, part, 0)
	}
	return &operr.Error{
		Class: operr.Postgres, Op: "attach", Subject: "partition " + part.String() + " again", Err: err,
		Hint: fmt.Sprintf("ALTER TABLE %s ATTACH PARTITION %s %s, or postrider purge --partitions, which goes on with it", t.from, part.sql(), part.bound),
	}
}

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// note writes a step into the audit; the next purge finds there what was left half done.
func (p *Purge) note(ctx context.Context, on execer, action string, t *table, part *partition, rows int64) error {
	_, err := on.Exec(ctx, `INSERT INTO postrider.audit (publisher, actor, action, detail)
		VALUES ($1, $2, $3, pg_catalog.jsonb_build_object('table', $4::text, 'partition', $5::text, 'oid', $6::bigint, 'bound', $7::text, 'rows', $8::bigint))`,
		p.cfg.Publisher, p.cfg.Actor, action, t.name, part.String(), int64(part.oid), part.bound, rows)
	return sqlError("write", "the audit", err)
}
