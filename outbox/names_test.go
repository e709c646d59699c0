package outbox

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/event"
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

// A timestamp that no calendar has is one row's fault: the relay has parked it, and it must not
// keep anybody from counting, choosing and listing the others.
func TestTimestampOutOfRange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind string
		unit router.Unit
		rows string
	}{
		{"bigint", router.UnitMillis, "('a', 9223372036854775807), ('b', -9223372036854775808), ('c', 1700000000000), ('d', NULL)"},
		{"timestamptz", "", "('a', 'infinity'), ('b', '-infinity'), ('c', to_timestamp(1700000000)), ('d', NULL)"},
	} {
		t.Run(c.kind, func(t *testing.T) {
			t.Parallel()
			db := newDB(t, "CREATE TABLE outbox(id text PRIMARY KEY, key text DEFAULT 'k', payload jsonb DEFAULT '1', at "+c.kind+"); INSERT INTO outbox (id, at) VALUES "+c.rows)
			db.Exec(t, "CREATE PUBLICATION "+db.Publication+" FOR TABLE outbox WITH (publish = 'insert')")
			r := open(t, db, router.Source{
				Schema: "public", Table: "outbox", Routes: []router.Route{{Topic: "t"}},
				Mapping: router.Mapping{EventID: "id", Key: "key", Payload: "payload", Timestamp: router.Timestamp{Column: "at", Unit: c.unit}},
			})
			r.commitTimes = false
			counts, err := r.Count(t.Context(), Selection{})
			must(t, err)
			if counts.Events != 4 || counts.Oldest == nil || !counts.Oldest.Equal(*counts.Newest) || counts.Oldest.Year() != 2023 {
				t.Errorf("%+v", counts)
			}
			at := time.Date(2023, 1, 1, 0, 0, 0, 0, time.UTC)
			for want, sel := range map[string]Selection{"a c": {Since: at}, "b": {Until: at}} {
				_, planned := plan(t, db, r, sel)
				if planned.Items != int64(len(strings.Fields(want))) {
					t.Errorf("%+v gives %+v, want %s", sel, planned, want)
				}
			}
			task, _ := plan(t, db, r, Selection{})
			if got := items(t, r, task, 0); len(got) != 4 || strings.Fields(strings.Replace(got[0], "refused ", "", 1))[1] != "b" {
				t.Errorf("items %v", got)
			}
		})
	}
}

// Event ids of every type and with odd characters find their rows: by list, by selection, and
// beside ids that the type cannot hold (trap 26).
func TestEventIDsOfAllTypes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ kind, value, id string }{
		"uuid":     {"uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"},
		"bigint":   {"bigint", "-9223372036854775808", "-9223372036854775808"},
		"smallint": {"smallint", "7", "7"},
		"numeric":  {"numeric", "1.50", "1.50"},
		"text":     {"text", `E'it''s "%s" \\ $1 \n\t é 日本 {} %'`, "it's \"%s\" \\ $1 \n\t é 日本 {} %"},
		"varchar":  {"varchar(40)", "' a '", " a "},
		"char":     {"char(5)", "'ab'", "ab   "},
		"enum":     {"my_enum", "'two'", "two"},
		"domain":   {"my_domain", "'D-1'", "D-1"},
		"bytea":    {"bytea", `'\xdeadbeef'`, `\xdeadbeef`},
		"boolean":  {"boolean", "true", "t"},
		"time":     {"timestamptz", "'2026-01-02 03:04:05.678+02'", "2026-01-02 01:04:05.678+00"},
		"money":    {"float8", "0.1::float8 + 0.2", "0.30000000000000004"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t, `CREATE TYPE my_enum AS ENUM ('one', 'two'); CREATE DOMAIN my_domain AS text CHECK (value LIKE 'D-%');
				CREATE TABLE "Out.box %s"("Event ""Id"" %s" `+c.kind+` PRIMARY KEY, key text, payload jsonb)`)
			db.Exec(t, `CREATE PUBLICATION `+db.Publication+` FOR TABLE "Out.box %s" WITH (publish = 'insert')`)
			db.Exec(t, `INSERT INTO "Out.box %s" VALUES (`+c.value+`, 'k', '1')`)
			r := open(t, db, router.Source{
				Schema: "public", Table: "Out.box %s", Routes: []router.Route{{Topic: "t"}},
				Mapping: router.Mapping{EventID: `Event "Id" %s`, Key: "key", Payload: "payload"},
			})
			many := slices.Repeat([]string{"no such id", "4711"}, mostTried)
			if n, err := r.Number(t.Context(), Selection{EventIDs: append(many, c.id)}); err != nil || n != 1 {
				t.Errorf("among many: %d, %v", n, err)
			}
			task, planned := plan(t, db, r, Selection{EventIDs: []string{c.id, "no such id", "4711", "D-2"}})
			if planned.Items != 1 || planned.Shared != 0 || planned.WithoutID != 0 {
				t.Fatalf("%+v", planned)
			}
			var got []string
			must(t, r.Items(t.Context(), task, 0, func(_ int64, msg *event.Message, refusal *event.Refusal) error {
				if msg == nil || refusal != nil {
					t.Errorf("message %v, refusal %v", msg, refusal)
					return nil
				}
				got = append(got, string(msg.EventID))
				return nil
			}))
			must(t, r.Each(t.Context(), task, Selection{}, func(c Candidate) error { got = append(got, string(c.Message.EventID)); return nil }))
			must(t, r.EventIDs(t.Context(), func(_ string, id []byte) error { got = append(got, string(id)); return nil }))
			if !slices.Equal(got, []string{c.id, c.id, c.id}) {
				t.Errorf("ids %q, want %q", got, c.id)
			}
			if n, err := r.Keep(t.Context(), "s", slices.Values([]string{c.id})); err != nil || n != 1 {
				t.Error(n, err)
			}
			if n, err := r.Number(t.Context(), Selection{Only: "s"}); err != nil || n != 1 {
				t.Errorf("only: %d, %v", n, err)
			}
			must(t, r.Gone(t.Context(), task, func(_ string, n int64, id []byte) error { t.Errorf("item %d, %s is gone", n, id); return nil }))
			if found, err := r.Find(t.Context(), c.id); err != nil || found == nil || string(found.Message.EventID) != c.id {
				t.Errorf("found %+v, %v", found, err)
			}
		})
	}
}
