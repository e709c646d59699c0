package checkpoint

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Entry is a line of the audit. The JSON fields are a documented contract; those of
// Detail depend on the action and are for people.
type Entry struct {
	ID        int64           `json:"id"`
	At        time.Time       `json:"at"`
	Publisher string          `json:"publisher"`
	Actor     string          `json:"actor"`
	DBUser    string          `json:"db_user"`
	Action    string          `json:"action"`
	Detail    json.RawMessage `json:"detail"`
}

// HistoryFilter chooses entries; a field without a value chooses all.
type HistoryFilter struct {
	Publisher string
	// Actions are names, or beginnings that end in a dot: "parked." for all of them.
	Actions []string
	// Actor is a part of who it was, in Actor or DBUser.
	Actor string
	// Since and Until bound the time: from Since on, before Until.
	Since, Until time.Time
	// Most is how many, the latest ones; 0: all.
	Most int
}

func (f HistoryFilter) where() (string, []any) {
	parts, args := []string{"true"}, []any{}
	add := func(condition string, value any) {
		args = append(args, value)
		parts = append(parts, fmt.Sprintf(condition, len(args)))
	}
	if f.Publisher != "" {
		add("publisher = $%d", f.Publisher)
	}
	if len(f.Actions) > 0 {
		add("EXISTS (SELECT FROM unnest($%d::text[]) a WHERE action = a OR right(a, 1) = '.' AND starts_with(action, a))", f.Actions)
	}
	if f.Actor != "" {
		add("position($%[1]d in actor) + position($%[1]d in db_user) > 0", f.Actor)
	}
	if !f.Since.IsZero() {
		add("at >= $%d", f.Since)
	}
	if !f.Until.IsZero() {
		add("at < $%d", f.Until)
	}
	return strings.Join(parts, " AND "), args
}

// History hands the entries over, the oldest first.
func History(ctx context.Context, conn *pgx.Conn, f HistoryFilter, each func(Entry) error) error {
	where, args := f.where()
	limit := ""
	if f.Most > 0 {
		limit = fmt.Sprintf(" LIMIT %d", f.Most)
	}
	rows, err := conn.Query(ctx, `SELECT id, at, publisher, actor, db_user, action, detail::text FROM
		(SELECT * FROM postrider.audit WHERE `+where+` ORDER BY at DESC, id DESC`+limit+`) a ORDER BY at, id`, args...)
	if err != nil {
		return storeError("read", "the audit", err)
	}
	var e Entry
	var detail string
	var own error
	_, err = pgx.ForEachRow(rows, []any{&e.ID, &e.At, &e.Publisher, &e.Actor, &e.DBUser, &e.Action, &detail}, func() error {
		e.Detail = json.RawMessage(detail)
		own = each(e)
		return own
	})
	if own != nil {
		return own
	}
	return storeErrorOrNil("read", "the audit", err)
}
