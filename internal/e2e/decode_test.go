package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/router"
)

// newFixtureOf is newFixture for sources of the test's own. ddl makes the tables and
// the publication, in which %s stands for the publication's quoted name.
func newFixtureOf(t *testing.T, db *testkit.DB, ddl string, sources func(f *fixture) []router.Source) *fixture {
	t.Helper()
	f := &fixture{t: t, db: db, broker: testkit.Kafka(t), prefix: strings.ReplaceAll(testkit.Unique(t), "_", "-"), policy: router.OnRefusalHalt}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := migrations.Apply(ctx, db.DSN); err != nil {
		t.Fatalf("apply migrations: %v", err)
	}
	db.Exec(t, strings.ReplaceAll(ddl, "%s", quoted(db.Publication)))
	db.Exec(t, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput')", db.Slot))
	f.cfg = f.config()
	f.cfg.Router.Sources = sources(f)
	for i := range f.cfg.Router.Sources {
		f.cfg.Router.Sources[i].OnRefusal = f.policy
	}
	return f
}

// mapping is that of the fixture's only source, to be changed before the start.
func (f *fixture) mapping() *router.Mapping { return &f.cfg.Router.Sources[0].Mapping }

// columns are headers of the same name as their columns.
func columns(names ...string) (fields []router.Field) {
	for _, name := range names {
		fields = append(fields, router.Field{Column: name})
	}
	return fields
}

// show spells bytes so that null and empty differ; bytes that are no UTF-8 as digits.
func show(b []byte) string {
	if b == nil {
		return "null"
	}
	if !utf8.Valid(b) {
		return fmt.Sprintf("hex %x", b)
	}
	return fmt.Sprintf("%q", b)
}

// spell is everything of a record that its row decides but the topic: key, value, headers.
func spell(r testkit.Record) string {
	text := "key " + show(r.Key) + " value " + show(r.Value)
	for _, h := range r.Headers {
		text += fmt.Sprintf(" %s=%s", h.Key, show(h.Value))
	}
	return text
}

func spellAll(records []testkit.Record) (all []string) {
	for _, r := range records {
		all = append(all, spell(r))
	}
	return all
}

// requireRecords compares a topic with what spell says of its records.
func (f *fixture) requireRecords(topic string, want ...string) {
	f.t.Helper()
	got := spellAll(f.awaitRecords(topic, len(want)))
	if slices.Equal(got, want) {
		return
	}
	f.t.Errorf("topic %s holds\n  %s\nwant\n  %s", topic, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
}

// requireClass fails the test if err is not of the class or does not name all parts.
func requireClass(t *testing.T, err error, class operr.Class, parts ...string) {
	t.Helper()
	var known *operr.Error
	if !errors.As(err, &known) || known.Class != class {
		t.Fatalf("the run ended with %v (class %d), want class %d", err, operr.ClassOf(err), class)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not name %q: %v", part, err)
		}
	}
}

// requireRefusal is requireClass for a halt at an event, refused for a reason.
func requireRefusal(t *testing.T, err error, reason event.Reason, parts ...string) {
	t.Helper()
	requireClass(t, err, operr.Halted, parts...)
	var refusal *event.Refusal
	if !errors.As(err, &refusal) || refusal.Reason != reason {
		t.Fatalf("refused with %v, want reason %s", err, reason)
	}
}

// TestTextFormatIsNotBinary: keys and headers are PostgreSQL's text, a bytea payload
// is its bytes, and two tables in one process do not mix (case C01).
func TestTextFormatIsNotBinary(t *testing.T) {
	t.Parallel()
	const table = `CREATE TABLE %s(id uuid PRIMARY KEY, agg uuid, d date, t time, p jsonb, b bytea);`
	f := newFixtureOf(t, testkit.Postgres(t),
		strings.ReplaceAll(table, "%s", "ob1")+strings.ReplaceAll(table, "%s", "ob2")+"CREATE PUBLICATION %s FOR TABLE ob1, ob2",
		func(f *fixture) []router.Source {
			source := func(table, payload string) router.Source {
				return router.Source{
					Schema: "public", Table: table,
					Mapping: router.Mapping{EventID: "id", Key: "agg", Payload: payload, Headers: columns("d", "t")},
					Routes:  []router.Route{{Topic: f.topic(table)}},
				}
			}
			return []router.Source{source("ob1", "p"), source("ob2", "b")}
		})
	for _, table := range []string{"ob1", "ob2"} {
		f.db.Exec(t, "INSERT INTO "+table+` VALUES ('11111111-1111-1111-1111-111111111111','550E8400-E29B-41D4-A716-446655440000','2024-02-29','23:59:59.999999','{"a":1}','\xdeadbeef'),
			('11111111-1111-1111-1111-111111111112','550E8400E29B41D4A716446655440000','0001-01-01 BC','24:00','[]','')`)
	}
	f.mustDrain()
	const key, first = `key "550e8400-e29b-41d4-a716-446655440000" value `, `id="11111111-1111-1111-1111-111111111111" d="2024-02-29" t="23:59:59.999999"`
	const second = `id="11111111-1111-1111-1111-111111111112" d="0001-01-01 BC" t="24:00:00"`
	f.requireRecords(f.topic("ob1"), key+`"{\"a\": 1}" `+first, key+`"[]" `+second)
	f.requireRecords(f.topic("ob2"), key+`hex deadbeef `+first, key+`"" `+second)
}

// hardJSON are texts that a parser and a printer would change.
var hardJSON = []string{
	`{"b":1, "a":2, "a":3,"n":12345678901234567890.10,"e":1e5,"u":"\u00e9\u2028</script>"}`,
	`null`, `"x"`, `[]`, `12345678901234567890`, `  {  }  `, `true`, `-0`, `1.0`, `1E400`, `0.1e-5`, `""`,
	`{"":""}`, `[1,2 ,3]`, `"\ud83d\ude00\t\/\b"`, `"<>&'` + "\u2028\u0085\ufeff" + `"`, `{"a":{"b":[{"c":1.10}]}}`,
}

// TestPayloadIsVerbatim: json and jsonb arrive as PostgreSQL's own text, byte for byte
// (case C02, trap 26).
func TestPayloadIsVerbatim(t *testing.T) {
	t.Parallel()
	f := newFixtureOf(t, testkit.Postgres(t), `CREATE TABLE ob_jsonb(n serial PRIMARY KEY, p jsonb); CREATE TABLE ob_json(n serial PRIMARY KEY, p json);
		CREATE TABLE ob_text(n serial PRIMARY KEY, p text); CREATE PUBLICATION %s FOR TABLE ob_jsonb, ob_json, ob_text`,
		func(f *fixture) (sources []router.Source) {
			for _, table := range []string{"ob_jsonb", "ob_json", "ob_text"} {
				sources = append(sources, router.Source{
					Schema: "public", Table: table, Mapping: router.Mapping{EventID: "n", Key: "n", Payload: "p"},
					Routes: []router.Route{{Topic: f.topic(table)}},
				})
			}
			return sources
		})
	var sql strings.Builder
	for _, text := range hardJSON {
		for _, table := range []string{"ob_jsonb", "ob_json", "ob_text"} {
			fmt.Fprintf(&sql, "INSERT INTO %s(p) VALUES (%s);", table, literal(text))
		}
	}
	// jsonb refuses it; json keeps the six characters.
	fmt.Fprintf(&sql, `INSERT INTO ob_json(p) VALUES ('"\u0000"');`)
	f.db.Exec(t, sql.String())
	f.mustDrain()
	for _, table := range []string{"ob_jsonb", "ob_json", "ob_text"} {
		got := map[string]string{}
		for _, r := range f.broker.ReadAll(t, f.topic(table)) {
			got[string(r.Key)] = string(r.Value)
		}
		for n, text := range hardJSON {
			n := fmt.Sprint(n + 1)
			want := f.scalar("SELECT p::text FROM " + table + " WHERE n = " + n)
			if got[n] != want || table != "ob_jsonb" && want != text {
				t.Errorf("%s of %s is published as %q, want %q", text, table, got[n], want)
			}
		}
		if table == "ob_json" && got[fmt.Sprint(len(hardJSON)+1)] != `"\u0000"` {
			t.Errorf("an escaped NUL became %q", got[fmt.Sprint(len(hardJSON)+1)])
		}
		if table == "ob_jsonb" && got["1"] != `{"a": 3, "b": 1, "e": 100000, "n": 12345678901234567890.10, "u": "é`+"\u2028"+`</script>"}` {
			t.Errorf("the first jsonb is %q", got["1"])
		}
	}
}

// displayTable has a column for each type whose text a session setting can change.
const displayTable = `CREATE SCHEMA hidden; GRANT USAGE ON SCHEMA hidden TO public; CREATE TABLE hidden."Odd"(n int); CREATE TABLE outbox(
	id int PRIMARY KEY, k text, p bytea, tz timestamptz, ts timestamp, d date, t time, ttz timetz, iv interval, by bytea, f8 float8, f4 float4,
	m money, txt text, arr timestamptz[], farr float8[], r tstzrange, reg regclass, typ regtype, x xml)`

const displayRows = `INSERT INTO outbox VALUES
	(1, 'é', '\xff00', '2024-03-05 06:07:08+00', '2024-03-05 06:07:08.5', '2024-03-05', '06:07:08', '06:07:08+05:30', '1 year 2 mons -3 days 04:05:06.7',
	 '\xff00', 0.1::float8+0.2, 0.1::float4/3, 1234.5, 'é', ARRAY['2024-03-05 06:07:08+00']::timestamptz[], ARRAY[0.1::float8+0.2], '[2024-03-05 06:07:08+00,)',
	 'hidden."Odd"', 'hidden."Odd"', '<a>é</a>'),
	(2, '日本', '\x5c', '0044-03-15 12:00:00+00 BC', 'infinity', '-infinity', '24:00', '24:00-15:59', '-1 mons', '\x', 'NaN', '-Infinity', -0.01, '日本 😀',
	 '{infinity,NULL}', '{1e-300,-0}', 'empty', 'pg_class', 'int4', NULL)`

// hostileSettings are what a role may have that changes how values look.
var hostileSettings = []string{
	"datestyle = 'SQL, DMY'", "bytea_output = 'escape'", "intervalstyle = 'iso_8601'", "extra_float_digits = 0", "timezone = 'Asia/Kolkata'",
	"client_encoding = 'latin1'", "search_path = hidden, public", "quote_all_identifiers = on", "default_transaction_read_only = off",
	"statement_timeout = '90s'", "standard_conforming_strings = off",
}

// TestDisplaySettingsChangeNothing: a plain role, a role with hostile settings, and a
// connection string that asks for the same, publish the same bytes (case C03, rule 10).
func TestDisplaySettingsChangeNothing(t *testing.T) {
	t.Parallel()
	plain := newFixtureWith(t, testkit.Postgres(t), testkit.Kafka(t), displayTable)
	*plain.mapping() = router.Mapping{
		EventID: "id", Key: "k", Payload: "p",
		Headers: columns("tz", "ts", "d", "t", "ttz", "iv", "by", "f8", "f4", "m", "txt", "arr", "farr", "r", "reg", "typ", "x"),
	}
	plain.db.Exec(t, displayRows)
	relays := map[string]*fixture{
		"plain role":        plain.asRole("plain"),
		"hostile role":      plain.asRole("hostile", hostileSettings...),
		"connection string": plain.asRole("asking"),
	}
	var options []string
	for _, s := range hostileSettings {
		name, value, _ := strings.Cut(s, " = ")
		options = append(options, "-c%20"+name+"%3D"+strings.NewReplacer("'", "", ", ", ",").Replace(value))
	}
	relays["connection string"].cfg.Replication.ConnString += "&client_encoding=latin1&DateStyle=german&options=" + strings.Join(options, "%20")
	want := []string{
		`key "é" value hex ff00 id="1" tz="2024-03-05 06:07:08+00" ts="2024-03-05 06:07:08.5" d="2024-03-05" t="06:07:08" ttz="06:07:08+05:30"` +
			` iv="1 year 2 mons -3 days +04:05:06.7" by="\\xff00" f8="0.30000000000000004" f4="0.033333335" m="$1,234.50" txt="é" arr="{\"2024-03-05 06:07:08+00\"}"` +
			` farr="{0.30000000000000004}" r="[\"2024-03-05 06:07:08+00\",)" reg="hidden.\"Odd\"" typ="hidden.\"Odd\"" x="<a>é</a>"`,
		`key "日本" value "\\" id="2" tz="0044-03-15 12:00:00+00 BC" ts="infinity" d="-infinity" t="24:00:00" ttz="24:00:00-15:59" iv="-1 mons" by="\\x" f8="NaN" f4="-Infinity"` +
			` m="-$0.01" txt="日本 😀" arr="{infinity,NULL}" farr="{1e-300,-0}" r="empty" reg="pg_class" typ="integer" x=null`,
	}
	for name, f := range relays {
		f.cfg.Router.Sources[0].Routes = []router.Route{{Topic: f.topic("all")}}
		f.createTopic("all", 1, nil)
		f.mustDrain()
		if got := spellAll(f.broker.ReadAll(t, f.topic("all"))); !slices.Equal(got, want) {
			t.Errorf("%s: published\n  %s\nwant\n  %s", name, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
		}
	}
}

// asRole gives another relay of the same outbox, with a slot, a publisher and topics of
// its own, under a role with the least rights and the given settings.
func (f *fixture) asRole(name string, settings ...string) *fixture {
	f.t.Helper()
	other := *f
	other.prefix = strings.ReplaceAll(testkit.Unique(f.t), "_", "-")
	role := f.db.Name + "_" + name
	slot := role + "_slot"
	ddl := fmt.Sprintf("CREATE ROLE %s LOGIN REPLICATION PASSWORD 'x';", role) +
		migrations.GrantsSQL(migrations.Grants{Role: role, Database: f.db.Name, Outbox: []migrations.Table{{Schema: "public", Name: "outbox"}}})
	for _, s := range settings {
		ddl += fmt.Sprintf("; ALTER ROLE %s SET %s", role, s)
	}
	f.db.Exec(f.t, ddl)
	// The slot begins where the other did, so that it sees the same transactions.
	f.db.Exec(f.t, fmt.Sprintf("SELECT pg_copy_logical_replication_slot('%s', '%s')", f.db.Slot, slot))
	f.t.Cleanup(func() { f.db.Exec(f.t, fmt.Sprintf("DROP OWNED BY %s; DROP ROLE %s", role, role)) })
	other.cfg.Publisher = name
	other.cfg.Replication.ConnString = f.db.As(role, "x")
	other.cfg.Replication.Slot = slot
	other.cfg.Router.Sources = slices.Clone(f.cfg.Router.Sources)
	return &other
}
