package outbox

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/router"
)

// The row filter of a publication names its columns without the table: columns that are called
// like those of our lists are the outbox's there (trap 25).
func TestFilterOnColumnsOfOurNames(t *testing.T) {
	t.Parallel()
	db := newDB(t, `CREATE TABLE outbox(event_id uuid PRIMARY KEY DEFAULT gen_random_uuid(), key text, payload jsonb, task int, n int, source_table text, outcome text)`)
	db.Exec(t, "CREATE PUBLICATION "+db.Publication+" FOR TABLE outbox WHERE (task = 1 AND n > 0 AND source_table = 's' AND outcome = 'ok' AND event_id IS NOT NULL) WITH (publish = 'insert')")
	db.Exec(t, "INSERT INTO outbox (key, payload, task, n, source_table, outcome) SELECT 'k', '1', 1, i, 's', CASE i WHEN 3 THEN 'no' ELSE 'ok' END FROM generate_series(1, 4) i")
	r := open(t, db, router.Source{Schema: "public", Table: "outbox", Mapping: router.Mapping{EventID: "event_id", Key: "key", Payload: "payload"}, Routes: []router.Route{{Topic: "t"}}})
	task, planned := plan(t, db, r, Selection{})
	if planned.Items != 3 {
		t.Errorf("%+v", planned)
	}
	if got := items(t, r, task, 0); len(got) != 3 || strings.Contains(strings.Join(got, " "), "gone") {
		t.Errorf("items %v", got)
	}
	var n int
	must(t, r.Each(t.Context(), 0, Selection{}, func(Candidate) error { n++; return nil }))
	if n != 3 {
		t.Errorf("%d candidates", n)
	}
}

// A row whose time nobody knows is outside of every span, unless it is asked for: what is to
// be published must not be left out for that.
func TestUndated(t *testing.T) {
	t.Parallel()
	db := newDB(t, plainTable)
	db.Exec(t, "CREATE PUBLICATION "+db.Publication+" FOR TABLE outbox WITH (publish = 'insert')")
	db.Exec(t, "INSERT INTO outbox (id, key, at, payload) VALUES ('old', 'k', '2020-01-01', '1'), ('undated', 'k', NULL, '2'), ('new', 'k', '2026-01-01', '3')")
	src := plainSource()
	src.Mapping.Timestamp = router.Timestamp{Column: "at"}
	r := open(t, db, src)
	r.commitTimes = false
	since := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	for want, sel := range map[string]Selection{"new": {Since: since}, "new undated": {Since: since, Undated: true}, "old undated": {Until: since, Undated: true}} {
		var got []string
		must(t, r.Each(t.Context(), 0, sel, func(c Candidate) error {
			got = append(got, string(c.Message.EventID))
			return nil
		}))
		if slices.Sort(got); strings.Join(got, " ") != want {
			t.Errorf("%+v gives %v, want %s", sel, got, want)
		}
	}
}
