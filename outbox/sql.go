package outbox

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// query collects the parameters of a statement that is put together.
type query struct{ args []any }

// param takes a value and gives its place.
func (q *query) param(value any) string {
	q.args = append(q.args, value)
	return fmt.Sprintf("$%d", len(q.args))
}

func ident(name string) string { return pgx.Identifier{name}.Sanitize() }

// literal quotes a string constant where no parameter can stand.
func literal(s string) string {
	q := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return "E" + strings.ReplaceAll(q, `\`, `\\`)
	}
	return q
}

// asIs are the types whose cast to text is what their output function writes; that of
// others is not (a boolean becomes true, a char(n) loses its blanks).
var asIs = map[uint32]bool{20: true, 21: true, 23: true, 25: true, 1043: true, 2950: true}

// text gives a column's value as the stream has it, as an SQL text; NULL stays NULL.
func (t *table) text(name string) string {
	col := "t." + ident(name)
	if i := t.rel.ColumnIndex(name); i >= 0 && asIs[t.rel.Columns[i].TypeOID] {
		return col + "::text"
	}
	return "CASE WHEN " + col + " IS NULL THEN NULL ELSE pg_catalog.format('%s', " + col + ") END"
}

// textOr is text, or a constant where the mapping has no such column.
func (t *table) textOr(name, constant string) string {
	if name == "" {
		return constant
	}
	return t.text(name)
}

func and(conditions []string) string {
	if len(conditions) == 0 {
		return "true"
	}
	return "(" + strings.Join(conditions, ") AND (") + ")"
}
