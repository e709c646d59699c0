package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
)

// Yield takes one item, valid until it returns: a message, or a refusal with what of
// the message could be found, or neither where the row is not in the table any more.
type Yield func(n int64, msg *event.Message, refusal *event.Refusal) error

const (
	// mostItems are looked up by one statement.
	mostItems = 5000
	// leastItems: rows of which fewer than that fill the memory are large indeed.
	leastItems = 64
	// chunkBytes is how much of them is kept in memory at once, and one fetch more.
	chunkBytes = 8 << 20
	// fetchRows are taken from the server at once.
	fetchRows = 64
)

// Items hands on the items of a task behind number from, in order, as the messages that the
// stream would have made of the rows. Nothing is kept open on the server while yield
// runs: it may wait for a broker for hours, and an open snapshot would keep the whole
// database from being cleaned up.
func (r *Reader) Items(ctx context.Context, task, from int64, yield Yield) error {
	c := &chunk{reader: r, task: task, most: mostItems}
	for {
		if err := r.inTx(ctx, readOnly, func(tx pgx.Tx) error { return c.read(ctx, tx, from) }); err != nil {
			return sqlError("read the events of", fmt.Sprintf("task %d", task), err)
		}
		if len(c.items) == 0 {
			return nil
		}
		if err := c.yield(yield); err != nil {
			return err
		}
		from = c.items[len(c.items)-1].n
	}
}

// chunk is a run of items with their rows.
type chunk struct {
	reader *Reader
	task   int64
	most   int // items to look up at once, by what their rows took so far

	items  []item
	values []event.Value
	memory []byte
	made   time.Time
	msg    event.Message
}

// item is one item; its row's values are found from values on.
type item struct {
	n       int64
	source  string
	table   *table
	values  int // -1: there is no row
	commits time.Time
}

const itemsSQL = `SELECT n, source_table FROM postrider.task_item WHERE task = $1 AND n > $2 ORDER BY n LIMIT $3`

// read fills the chunk with what follows from.
func (c *chunk) read(ctx context.Context, tx pgx.Tx, from int64) error {
	c.items, c.values, c.memory = c.items[:0], c.values[:0], c.memory[:0]
	if cap(c.memory) > 2*chunkBytes {
		c.memory = nil // very large rows do not hold theirs for ever
	}
	if c.made.IsZero() {
		// What a record's time is where neither mapping nor server know: the same for each attempt.
		if err := tx.QueryRow(ctx, `SELECT created_at FROM postrider.task WHERE id = $1`, c.task).Scan(&c.made); err != nil {
			return err
		}
	}
	rows, err := tx.Query(ctx, itemsSQL, c.task, from, c.most)
	if err != nil {
		return err
	}
	c.items, err = pgx.AppendRows(c.items, rows, func(row pgx.CollectableRow) (it item, err error) {
		it.values = -1
		err = row.Scan(&it.n, &it.source)
		return it, err
	})
	if err != nil || len(c.items) == 0 {
		return err
	}
	for _, t := range c.reader.tables {
		if err := c.readTable(ctx, tx, t, from); err != nil {
			return err
		}
	}
	c.most = min(mostItems, max(leastItems, 2*len(c.items)))
	return nil
}

// lookUpSQL: the comparison by type is for the index, that of the texts is exact. A row
// filter names its columns without the table: those of the items get names of their own.
const lookUpSQL = `DECLARE items NO SCROLL CURSOR FOR
SELECT i."postrider item", floor(extract(epoch FROM %s) * 1000)::bigint, %s
  FROM (SELECT n AS "postrider item", event_id AS "postrider id" FROM postrider.task_item WHERE task = %d AND n > %d AND n <= %d AND source_table = %s) i
  JOIN %s t ON t.%s = i."postrider id"::%s AND %s = i."postrider id"
 WHERE %s
 ORDER BY i."postrider item"%s`

// readTable reads the rows of one table. Where the memory is used up, the chunk ends there.
func (c *chunk) readTable(ctx context.Context, tx pgx.Tx, t *table, from int64) error {
	if !slices.ContainsFunc(c.items, func(it item) bool { return it.source == t.name }) {
		return nil
	}
	order := ""
	if !t.unique {
		order = ", t.xmin::text::bigint, t.cmin::text::bigint, t.ctid" // the first of those that share the id
	}
	id := t.src.Mapping.EventID
	sql := fmt.Sprintf(lookUpSQL, c.reader.commitTimeSQL(), t.columns(), c.task, from, c.items[len(c.items)-1].n, literal(t.name),
		t.from, ident(id), t.idType, t.text(id), cmp.Or(t.published, "true"), order)
	if _, err := tx.Exec(ctx, sql); err != nil {
		return err
	}
	for more := true; more; {
		// The simple protocol gives text, as the stream does.
		rows, err := tx.Query(ctx, fmt.Sprintf("FETCH FORWARD %d FROM items", fetchRows), pgx.QueryExecModeSimpleProtocol)
		if err == nil {
			more, err = c.fetch(rows, t)
		}
		if err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, "CLOSE items")
	return err
}

// fetch takes rows in; more is false after the last one, and when there is no more memory.
func (c *chunk) fetch(rows pgx.Rows, t *table) (more bool, err error) {
	defer rows.Close()
	count := 0
	for rows.Next() {
		count++
		raw := rows.RawValues()
		n, err := strconv.ParseInt(string(raw[0]), 10, 64)
		if err != nil {
			return false, err
		}
		i, found := slices.BinarySearchFunc(c.items, n, func(it item, n int64) int { return cmp.Compare(it.n, n) })
		if !found || c.items[i].values >= 0 {
			continue // cut off already; or another row of the same id
		}
		c.items[i].table = t
		c.items[i].commits = c.commitTime(raw[1])
		c.items[i].values = len(c.values)
		for _, v := range raw[2:] {
			c.keep(v)
		}
		if len(c.memory) > chunkBytes {
			c.items = c.items[:i+1]
			return false, nil
		}
	}
	return count == fetchRows, rows.Err()
}

func (c *chunk) commitTime(millis []byte) time.Time {
	ms, err := strconv.ParseInt(string(millis), 10, 64)
	if millis == nil || err != nil {
		return c.made
	}
	return time.UnixMilli(ms)
}

// keep copies a value.
func (c *chunk) keep(v []byte) {
	if v == nil {
		c.values = append(c.values, event.Value{Kind: event.Null})
		return
	}
	start := len(c.memory)
	c.memory = append(c.memory, v...)
	c.values = append(c.values, event.Value{Kind: event.Text, Data: c.memory[start:len(c.memory):len(c.memory)]})
}

// yield routes the rows and hands them on.
func (c *chunk) yield(yield Yield) error {
	for i := range c.items {
		it := &c.items[i]
		if it.values < 0 {
			if err := yield(it.n, nil, nil); err != nil {
				return err
			}
			continue
		}
		row := event.Row{
			Relation: it.table.rel, Values: c.values[it.values : it.values+len(it.table.rel.Columns)], CommitTime: it.commits,
			Position: event.Position{Index: uint64(it.n)},
		}
		_, refusal := c.reader.router.Route(&row, &c.msg)
		if err := yield(it.n, &c.msg, refusal); err != nil {
			return err
		}
	}
	return nil
}
