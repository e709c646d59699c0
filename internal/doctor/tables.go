package doctor

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
)

func checkPublication(ctx context.Context, e *exam) []answer {
	conn, err := e.sql(ctx)
	if err != nil {
		return unanswered(err)
	}
	found := problems(replication.CheckPublications(ctx, conn, replication.CheckConfig{
		Publications: e.cfg.Replication.Publications, Tables: e.tables(),
	}))
	if len(found) > 0 {
		return found
	}
	late, err := e.latePublications(ctx)
	if err != nil {
		return unanswered(err)
	}
	verb := "publishes"
	if len(e.cfg.Replication.Publications) > 1 {
		verb = "publish"
	}
	return orOK(late, "%s %s the inserts of %s", quotedList(e.cfg.Replication.Publications), verb, tableList(e.tables()))
}

// lateSQL finds publications whose row was written by a transaction that the snapshot $2,
// taken at the slot's birth, does not see (trap 22). xmin is the low half of a
// transaction's id; the whole is the one nearest to the snapshot's.
const lateSQL = `SELECT coalesce(pg_catalog.string_agg(pg_catalog.quote_ident(pubname), ', '), '')
  FROM (SELECT pubname, pg_catalog.pg_snapshot_xmax($2::text::pg_snapshot)::text::bigint AS edge, xmin::text::bigint AS low
          FROM pg_catalog.pg_publication WHERE pubname = ANY($1)) p
 WHERE NOT pg_catalog.pg_visible_in_snapshot(
   (edge + (low - edge + 2147483648 & 4294967295) - 2147483648)::text::xid8, $2::text::pg_snapshot)`

// latePublications is about a slot that still stands where it was born; what setup did
// not make has no snapshot to go by.
func (e *exam) latePublications(ctx context.Context) ([]answer, error) {
	slot, err := e.readSlot(ctx)
	if err != nil {
		return nil, err
	}
	stored, err := e.readStored(ctx)
	if err != nil || stored == nil || stored.BirthSnapshot == "" || slot.ConfirmedFlush != stored.SlotBirth {
		return nil, nil //nolint:nilerr // the check checkpoint says what is wrong with the row
	}
	var late string
	if err := e.row(ctx, lateSQL, []any{e.cfg.Replication.Publications, stored.BirthSnapshot}, &late); err != nil || late == "" {
		return nil, err
	}
	return warn("where run ends with \"publication does not exist\", the slot cannot be read past those rows: drop it, run postrider setup, then postrider recover",
		"%s was created or altered after slot %q: rows between come as the publication was then, and fail the stream where there was none", late, slot.Name), nil
}

func quotedList(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = strconv.Quote(n)
	}
	return strings.Join(quoted, ", ")
}

func tableList(tables []replication.Table) string {
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = t.String()
	}
	return list(names, 5)
}

// shardSQL lists the filters that any publication of the database has for a table.
const shardSQL = `SELECT coalesce(pg_catalog.array_agg(f), '{}') FROM (
  SELECT DISTINCT pg_catalog.to_jsonb(t) ->> 'rowfilter' AS f FROM pg_catalog.pg_publication_tables t
   WHERE t.schemaname = $1 AND t.tablename = $2) x WHERE f IS NOT NULL`

func checkRowFilter(ctx context.Context, e *exam) (found []answer) {
	pubs, err := e.readPublications(ctx)
	if err != nil {
		return unanswered(err)
	}
	var filtered []string
	for _, t := range e.tables() {
		published := false
		for i := range pubs {
			covered, in := pubs[i].Covers(t)
			published = published || in
			if !in || covered.RowFilter == "" {
				continue
			}
			var all []string
			if err := e.row(ctx, shardSQL, []any{t.Schema, t.Name}, &all); err != nil {
				return unanswered(err)
			}
			filtered = append(filtered, fmt.Sprintf("%s WHERE %s", t, covered.RowFilter))
			found = append(found, judgeFilter(t, pubs[i].Name, covered.RowFilter, all)...)
		}
		if !published {
			return append(found, unanswered(needs(fmt.Sprintf("%s is not published (see publication)", t)))...)
		}
	}
	if len(filtered) == 0 {
		return ok("none: every insert is published")
	}
	return orOK(found, "%s; the other shards are published, too", list(filtered, 3))
}

// judgeFilter looks at the filter of one publication beside all that the table has.
func judgeFilter(t replication.Table, publication, filter string, all []string) []answer {
	n, _, sharded := shard(filter)
	switch {
	case strings.Contains(filter, "hashtext"):
		return fail("get_byte(decode(md5(coalesce(key, '')), 'hex'), 15) % N = r is a filter that is never negative; all shards change in one transaction",
			"publication %q takes rows of %s WHERE %s: hashtext is negative for half the keys, and %% keeps the sign, so that they go to no shard", publication, t, filter)
	case !sharded:
		return warn("ALTER PUBLICATION … SET TABLE without WHERE, unless the rows that it leaves out are no events",
			"publication %q takes rows of %s only WHERE %s: all others are never published", publication, t, filter)
	}
	var missing []string
	for r := range n {
		if !slices.ContainsFunc(all, func(f string) bool { m, of, is := shard(f); return is && m == n && of == r }) {
			missing = append(missing, strconv.Itoa(r))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fail(fmt.Sprintf("a publication for each that is missing, of the same filter with = %s, and a slot and a relay of its own", list(missing, 8)),
		"publication %q takes one shard of %d of %s, and no publication takes %s: their events are never published", publication, n, t, list(missing, 8))
}

// modulo finds "… % 4) = 1" as pg_get_expr writes it.
var modulo = regexp.MustCompile(`% \(?(\d+)\)*(?:::\w+\)*)? = \(?(\d+)`)

func shard(filter string) (of, r int, is bool) {
	m := modulo.FindStringSubmatch(filter)
	if m == nil {
		return 0, 0, false
	}
	of, err1 := strconv.Atoi(m[1])
	r, err2 := strconv.Atoi(m[2])
	return of, r, err1 == nil && err2 == nil && of > 0 && of <= 1024
}

func checkMapping(ctx context.Context, e *exam) (found []answer) {
	conn, err := e.sql(ctx)
	if err != nil {
		return unanswered(err)
	}
	pubs, err := e.readPublications(ctx)
	if err != nil {
		return unanswered(err)
	}
	rt, err := router.New(e.cfg.Router)
	if err != nil {
		return fail("postrider config check", "%s", oneLine(err.Error()))
	}
	for _, t := range e.tables() {
		rel, err := replication.DescribeTable(ctx, conn, t, pubs)
		switch {
		case err != nil:
			return append(found, unanswered(err)...)
		case len(rel.Columns) == 0:
			found = append(found, unanswered(needs(fmt.Sprintf("there is no table %s (see publication)", t)))...)
			continue
		}
		if err := router.Certain(rt.Bind(rel), rel); err != nil {
			found = append(found, fail("correct the source's mapping, or give the table its column back; names are compared exactly", "%s", err.Error())...)
		}
	}
	if len(found) > 0 {
		return found
	}
	s, err := e.readSample(ctx)
	if err != nil {
		return orOK(nil, "fits %s; no rows were looked at (%s)", tableList(e.tables()), oneLine(err.Error()))
	}
	return orOK(s.refusals(), "fits %s; %s", tableList(e.tables()), s.words())
}

// sampleNeeded is for what goes by the rows of the table.
func sampleNeeded(err error) error {
	if dependency := (*dependencyError)(nil); errors.As(err, &dependency) {
		return err
	}
	return needs("no rows of the table could be read: " + oneLine(err.Error()))
}
