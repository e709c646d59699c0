package e2e

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// typeCases are values of every kind, with the bytes that have to arrive.
var typeCases = []struct{ typ, in, want string }{
	{"bytea", `'\xdeadbeef00ff'`, "\xde\xad\xbe\xef\x00\xff"},
	{"bytea", `''`, ""},
	{"bytea", `'\\x'::text::bytea`, `\x`},
	{"raw", `'\x00'`, "\x00"}, // a domain over bytea
	{"rawer", `'\xff'`, "\xff"},
	{"bytea[]", `'{"\\x00",NULL}'`, `{"\\x00",NULL}`},
	{"uuid", `'{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}'`, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"},
	{"bigint", "-9223372036854775808", "-9223372036854775808"},
	{"numeric", "'NaN'", "NaN"},
	{"numeric", "'-Infinity'", "-Infinity"},
	{"numeric", "1e400 + 0.10", "1" + strings.Repeat("0", 400) + ".10"},
	{"numeric(10,2)", "1.005", "1.01"},
	{"numeric(3,-2)", "12345", "12300"},
	{"float8", "'-0'", "-0"},
	{"float8", "5e-324", "5e-324"},
	{"float8", "1e15", "1e+15"},
	{"float4", "16777217", "1.6777216e+07"},
	{"mood", "'so la la'", "so la la"},
	{"mood[]", "'{sad,\"so la la\"}'", `{sad,"so la la"}`},
	{"positive", "42", "42"},
	{"doc", `'{"b":1,"a":1.0}'`, `{"a": 1.0, "b": 1}`},
	{"text[]", `ARRAY['a','b "c"',NULL,'NULL','','\',',','{}']`, `{a,"b \"c\"",NULL,"NULL","","\\",",","{}"}`},
	{"int[]", "'[0:1][2:3]={{1,2},{3,4}}'", "[0:1][2:3]={{1,2},{3,4}}"},
	{"jsonb[]", `ARRAY['{"a":1}'::jsonb]`, `{"{\"a\": 1}"}`},
	{"timestamptz", "'infinity'", "infinity"},
	{"timestamptz", "'-infinity'", "-infinity"},
	{"timestamptz", "'4713-01-01 00:00:00+00 BC'", "4713-01-01 00:00:00+00 BC"},
	{"timestamptz", "'294276-12-31 23:59:59.999999+00'", "294276-12-31 23:59:59.999999+00"},
	{"timestamptz", "'2024-03-31 02:30:00 Europe/Berlin'", "2024-03-31 01:30:00+00"},
	{"timestamptz(0)", "'2024-03-05 23:59:59.5+14'", "2024-03-05 10:00:00+00"},
	{"timestamp", "'0001-01-01 00:00:00 BC'", "0001-01-01 00:00:00 BC"},
	{"date", "'0044-03-15 BC'", "0044-03-15 BC"},
	{"date", "'infinity'", "infinity"},
	{"date", "'5874897-12-31'", "5874897-12-31"},
	{"time", "'24:00'", "24:00:00"},
	{"timetz", "'12:00-08:30'", "12:00:00-08:30"},
	{"interval", "'-1 year 2 mons 3 days -04:05:06.000007'", "-10 mons +3 days -04:05:06.000007"},
	{"bool", "true", "t"},
	{"bit(5)", "'10101'", "10101"},
	{"varbit", "''", ""},
	{"inet", "'::ffff:1.2.3.4/128'", "::ffff:1.2.3.4"},
	{"point", "'(0.1,1e300)'", "(0.1,1e+300)"},
	{"int4range", "'[1,10]'", "[1,11)"},
	{"xml", "'<a>é</a>'", "<a>é</a>"},
	{"tsvector", "'b:2 a:1'", "'a':1 'b':2"},
	{"pair", "ROW('a,b', NULL, '\"')", `("a,b",,"""")`},
	{"char(4)", "'ab'", "ab  "},
	{`"char"`, "'x'", "x"},
	{"name", "'outbox'", "outbox"},
	{"oid", "4294967295", "4294967295"},
	{"jsonb", "'1' || repeat('0', 1000)", "1" + strings.Repeat("0", 1000)},
	{"jsonb", `'[1E+2, 1e-2, 9007199254740993, -0.0, 1.10]'`, `[100, 0.01, 9007199254740993, 0.0, 1.10]`},
	{"jsonb", `'"\ud834\udd1e \u0001 \\ / < \u2028"'`, `"𝄞 \u0001 \\ / <` + " \u2028\""},
	{"text", `E'\x01\t\r\n\\x00 "quoted" \x7f'`, "\x01\t\r\n\\x00 \"quoted\" \x7f"},
	{"text", "'' || chr(65279) || chr(1114111) || chr(57344)", "\ufeff\U0010ffff\ue000"},
	{"varchar(3)", "'äöü'", "äöü"},
}

// typeTables makes a table for each of typeCases, and fills it.
func typeTables() (ddl, inserts string) {
	ddl = `CREATE DOMAIN raw AS bytea; CREATE DOMAIN rawer AS raw; CREATE TYPE mood AS ENUM ('sad', 'so la la'); CREATE DOMAIN positive AS int CHECK (VALUE > 0);
		CREATE DOMAIN doc AS jsonb; CREATE TYPE pair AS (a text, b int, c text);`
	for i, c := range typeCases {
		if c.typ == "numeric(3,-2)" {
			c.typ = "numeric" // negative scales are younger than the oldest server
			c.in = "round(12345, -2)"
		}
		ddl += fmt.Sprintf("CREATE TABLE ob%d(id int, p %s);", i, c.typ)
		inserts += fmt.Sprintf("INSERT INTO ob%d VALUES (%d, (%s)::%s);", i, i, c.in, c.typ)
	}
	return ddl, inserts
}

// TestEveryTypeAsPayloadAndKey: the bytes of a value arrive as PostgreSQL writes them,
// those of a bytea, also of one behind domains, as they are (trap 26).
func TestEveryTypeAsPayloadAndKey(t *testing.T) {
	t.Parallel()
	ddl, inserts := typeTables()
	f := newFixtureOf(t, testkit.Postgres(t), ddl+"CREATE PUBLICATION %s FOR ALL TABLES", func(f *fixture) (sources []router.Source) {
		for i := range typeCases {
			sources = append(sources, router.Source{
				Schema: "public", Table: fmt.Sprintf("ob%d", i), Routes: []router.Route{{Topic: f.topic("all")}},
				Mapping: router.Mapping{EventID: "id", Key: "p", EmptyKey: router.EmptyKeyAllow, Payload: "p", Headers: columns("p")},
			})
		}
		return sources
	})
	f.createTopic("all", 1, nil)
	f.db.Exec(t, inserts)
	f.mustDrain()
	records := f.broker.ReadAll(t, f.topic("all"))
	if len(records) != len(typeCases) {
		t.Fatalf("%d records, want %d", len(records), len(typeCases))
	}
	for i, c := range typeCases {
		r := records[i]
		if string(r.Value) != c.want || string(r.Key) != c.want || r.Value == nil {
			t.Errorf("%s of type %s: value %s, key %s, want %q", c.in, c.typ, show(r.Value), show(r.Key), c.want)
		}
		want := c.want
		if c.typ == "bytea" || c.typ == "raw" || c.typ == "rawer" {
			want = fmt.Sprintf(`\x%x`, c.want) // a header is text
		}
		if h, _ := r.Header("p"); string(h) != want {
			t.Errorf("%s of type %s: header %s, want %q", c.in, c.typ, show(h), want)
		}
	}
}

// TestEveryCharacter: all code points that PostgreSQL takes (trap 26).
func TestEveryCharacter(t *testing.T) {
	t.Parallel()
	const rows, perRow = 35, 32768
	f := newFixtureWith(t, testkit.Postgres(t), testkit.Kafka(t), "CREATE TABLE outbox(n int, k text, payload text)")
	*f.mapping() = router.Mapping{EventID: "n", Key: "k", Payload: "payload", Headers: columns("k")}
	f.cfg.Router.Sources[0].Routes = []router.Route{{Topic: f.topic("all")}}
	f.createTopic("all", 1, nil)
	f.db.Exec(t, fmt.Sprintf(`INSERT INTO outbox SELECT i / %d, string_agg(chr(i), '' ORDER BY i) FILTER (WHERE i %% 16 = 0), string_agg(chr(i), '' ORDER BY i)
		FROM generate_series(1, 1114111) i WHERE i NOT BETWEEN 55296 AND 57343 GROUP BY 1 ORDER BY 1`, perRow))
	f.mustDrain()
	var all strings.Builder
	for c := rune(1); c <= utf8.MaxRune; c++ {
		if utf8.ValidRune(c) {
			all.WriteRune(c)
		}
	}
	var got strings.Builder
	records := f.broker.ReadAll(t, f.topic("all"))
	for _, r := range records {
		got.Write(r.Value)
		if h, _ := r.Header("k"); string(h) != string(r.Key) || !strings.Contains(string(r.Value), string([]rune(string(h))[:1])) {
			t.Errorf("row of offset %d: header and key differ", r.Offset)
		}
	}
	if len(records) != rows-1 || got.String() != all.String() {
		t.Errorf("%d records with %d bytes, want %d with %d, all equal", len(records), got.Len(), rows-1, all.Len())
	}
}

// TestGeneratedColumns: before 18 they are not sent, so one that is mapped is an error
// at the start; one that is not mapped shifts nothing (rule 10, trap 25).
func TestGeneratedColumns(t *testing.T) {
	t.Parallel()
	f := newFixtureWith(t, testkit.Postgres(t), testkit.Kafka(t), `CREATE TABLE outbox(aggregate_type text, up text GENERATED ALWAYS AS (upper(aggregate_type)) STORED,
		id int GENERATED ALWAYS AS IDENTITY, aggregate_id text, gone text, twice int GENERATED ALWAYS AS (2 * 21) STORED, event_type text, payload jsonb); ALTER TABLE outbox DROP COLUMN gone`)
	f.createTopic("order", 1, nil)
	f.db.Exec(t, `INSERT INTO outbox(aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'k', 'X', '1')`)
	if f.db.VersionNum(t) < 180000 {
		f.mapping().Headers = columns("up")
		requireClass(t, f.drain(), operr.Config, `"up"`, `"aggregate_type", "id", "aggregate_id", "event_type", "payload"`)
		f.mapping().Headers = nil
	}
	f.mustDrain()
	f.requireRecords(f.topic("order"), `key "k" value "1" id="1" event_type="X"`)
}

// TestColumnList: a publication that leaves columns out is checked at the start as it
// publishes, not as the table is (rules 7 and 10).
func TestColumnList(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	if db.VersionNum(t) < 150000 {
		t.Skip("column lists came with 15")
	}
	f := newFixtureOf(t, db, alterTable+`; ALTER TABLE outbox ADD "a,b ""c""" text DEFAULT 'odd', ADD left_out int;
		CREATE PUBLICATION %s FOR TABLE outbox(payload, aggregate_id, id, aggregate_type, "a,b ""c""") WITH (publish = 'insert')`,
		func(f *fixture) []router.Source { return f.config().Router.Sources })
	f.put("1", "payload")
	requireClass(t, f.drain(), operr.Config, `"event_type"`, `"id", "aggregate_type", "aggregate_id", "payload", "a,b \"c\"" (`)
	f.mapping().EventType, f.mapping().Headers = "", columns(`a,b "c"`)
	f.mustDrain()
	f.requireRecords(f.topic("order"), `key "k" value "\"1\"" id="1" a,b "c"="odd"`)
}

// TestRowFilter: rows that a publication filters out are nobody's events, and are not
// waited for (rule 21).
func TestRowFilter(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	if db.VersionNum(t) < 150000 {
		t.Skip("row filters came with 15")
	}
	f := newFixtureOf(t, db, alterTable+"; CREATE PUBLICATION %s FOR TABLE outbox WHERE (get_byte(decode(md5(coalesce(aggregate_id, '')), 'hex'), 15) % 2 = 0) WITH (publish = 'insert')",
		func(f *fixture) []router.Source { return f.config().Router.Sources })
	f.cfg.Router.Sources[0].Routes = []router.Route{{Topic: f.topic("all")}}
	f.createTopic("all", 1, nil)
	f.db.Exec(t, "INSERT INTO outbox SELECT i::text, 'order', 'k' || i, 'X', to_jsonb(i) FROM generate_series(1, 100) i")
	f.mustDrain()
	want := f.scalar("SELECT string_agg(id, ' ' ORDER BY id::int) FROM outbox WHERE get_byte(decode(md5(aggregate_id), 'hex'), 15) % 2 = 0")
	if got := strings.Join(values(f.broker.ReadAll(t, f.topic("all"))), " "); got != want || len(want) < 50 {
		t.Errorf("published %s, want %s", got, want)
	}
	f.db.Exec(t, "INSERT INTO outbox(id, aggregate_id) VALUES ('odd', (SELECT 'k' || i FROM generate_series(1, 100) i WHERE get_byte(decode(md5('k' || i), 'hex'), 15) % 2 = 1 LIMIT 1))")
	f.mustDrain()
}
