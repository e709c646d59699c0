package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// oddNames is a table whose names all need quoting in SQL.
const oddNames = `CREATE SCHEMA "My.Schema"; CREATE TABLE "My.Schema"."Outbox Events"(
	"Id" uuid PRIMARY KEY, "AggregateId" text, "a""b" text, payload jsonb, "order" text, "Größe, $1 'x'" text, "${key}" text);`

const oddRow = `INSERT INTO "My.Schema"."Outbox Events" VALUES
	('00000000-0000-0000-0000-000000000001', 'order-1', 'quoted', '{"a":1}', 'Order', 'groß', 'braces')`

// oddYAML is the configuration for it: names as the catalog has them, without SQL quotes.
func (f *fixture) oddYAML(change ...string) string {
	f.t.Helper()
	text := fmt.Sprintf(`publisher: {name: test, shutdown_timeout: 10s}
postgres: {dsn: %q, slot: %s, publication: %q}
kafka:
  brokers: [%s]
  topics: {create: {partitions: 12, replication_factor: -1}}
admin: {listen: "127.0.0.1:0"}
log: {format: json}
sources:
  - table: {schema: My.Schema, name: Outbox Events}
    mapping:
      event_id: Id
      key: AggregateId
      payload: payload
      headers: [{column: 'a"b', name: 'a"b'}, "Größe, $1 'x'", {column: '$${key}', name: braces}]
    routes:
      - topic: %s.${column.order}
`, f.db.DSN, f.db.Slot, f.db.Publication, strings.Join(f.broker.Bootstrap(), ", "), f.prefix)
	for i := 0; i+1 < len(change); i += 2 {
		if !strings.Contains(text, change[i]) {
			f.t.Fatalf("the configuration has no %q", change[i])
		}
		text = strings.Replace(text, change[i], change[i+1], 1)
	}
	path := filepath.Join(f.t.TempDir(), "postrider.yaml")
	must(f.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// requireOutcome runs a command of the binary and wants its exit code and what it says.
func requireOutcome(t *testing.T, code int, says []string, args ...string) {
	t.Helper()
	p := spawn(t, args...)
	got := p.wait(patience)
	if got != code {
		t.Fatalf("%s: exit code %d, want %d; it said:\n%s", args[0], got, code, p.said())
	}
	for _, s := range says {
		if !strings.Contains(p.said(), s) {
			t.Errorf("%s does not say %q; it said:\n%s", args[0], s, p.said())
		}
	}
}

// TestOddNames: setup and run quote what needs quoting and compare names byte for
// byte, whatever the publication is called (case C06, trap 25).
func TestOddNames(t *testing.T) {
	t.Parallel()
	for _, publication := range []string{"Pub-1", `we"ird, pub's \ name`, "überpub"} {
		t.Run(publication, func(t *testing.T) {
			t.Parallel()
			f := oddFixture(t, publication)
			config := f.oddYAML()
			requireOutcome(t, 0, nil, "setup", "--config", config)
			f.db.Exec(t, oddRow)
			requireOutcome(t, 0, nil, "run", "--config", config, "--until-lsn", "now")
			f.requireRecords(f.topic("Order"),
				`key "order-1" value "{\"a\": 1}" id="00000000-0000-0000-0000-000000000001" a"b="quoted" Größe, $1 'x'="groß" braces="braces"`)
		})
	}
}

// oddFixture is a database with the table only: no schema, slot or publication of ours.
func oddFixture(t *testing.T, publication string) *fixture {
	db := testkit.Postgres(t)
	db.Publication = publication
	db.Exec(t, oddNames)
	return &fixture{t: t, db: db, broker: testkit.Kafka(t), prefix: strings.ReplaceAll(testkit.Unique(t), "_", "-")}
}

// TestNamesInTheWrongCase: each name that differs in case only ends the start with an
// error that names it, and what was meant where that can be known, before a row is
// published (case C06).
func TestNamesInTheWrongCase(t *testing.T) {
	t.Parallel()
	f := oddFixture(t, "Pub-1")
	config := f.oddYAML()
	requireOutcome(t, 0, nil, "setup", "--config", config)
	f.db.Exec(t, oddRow)
	for name, tt := range map[string]struct {
		from, to string
		code     operr.Class
		says     []string
	}{
		"column":        {"key: AggregateId", "key: aggregateid", operr.Config, []string{`"aggregateid"`, `"Id", "AggregateId", "a\"b"`}},
		"header column": {`{column: 'a"b', `, `{column: 'A"B', `, operr.Config, []string{`"A\"B"`, `"AggregateId"`}},
		"topic column":  {"${column.order}", "${column.Order}", operr.Config, []string{`"Order"`, `"AggregateId"`}},
		"quoted column": {"key: AggregateId", `key: '"AggregateId"'`, operr.Config, []string{"AggregateId"}},
		"table":         {"name: Outbox Events", "name: outbox events", operr.Postgres, []string{"outbox events"}},
		"schema":        {"schema: My.Schema", "schema: my.schema", operr.Postgres, []string{"my.schema"}},
		"publication":   {"Pub-1", "pub-1", operr.Postgres, []string{"pub-1"}},
		"slot":          {"slot: " + f.db.Slot, "slot: " + strings.ToUpper(f.db.Slot), operr.Config, []string{"postgres.slot", "a-z 0-9 _"}},
	} {
		t.Run(name, func(t *testing.T) {
			requireOutcome(t, tt.code.ExitCode(), tt.says, "run", "--config", f.oddYAML(tt.from, tt.to), "--until-lsn", "now")
		})
	}
	// None of them has moved anything: the right names publish the row.
	requireOutcome(t, 0, nil, "run", "--config", config, "--until-lsn", "now")
	f.awaitRecords(f.topic("Order"), 1)
}

// TestSourcesDifferInCaseOnly: two tables, and two columns, whose names differ in case
// only are told apart (case C06).
func TestSourcesDifferInCaseOnly(t *testing.T) {
	t.Parallel()
	f := newFixtureOf(t, testkit.Postgres(t), `CREATE TABLE outbox(id int PRIMARY KEY, "ID" int, k text, p text);
		CREATE TABLE "Outbox"(id int PRIMARY KEY, "ID" int, k text, p text); CREATE PUBLICATION %s FOR TABLE outbox, "Outbox"`,
		func(f *fixture) []router.Source {
			return []router.Source{
				{Schema: "public", Table: "outbox", Mapping: router.Mapping{EventID: "id", Key: "k", Payload: "p"}, Routes: []router.Route{{Topic: f.topic("lower")}}},
				{Schema: "public", Table: "Outbox", Mapping: router.Mapping{EventID: "ID", Key: "k", Payload: "p"}, Routes: []router.Route{{Topic: f.topic("upper")}}},
			}
		})
	f.db.Exec(t, `INSERT INTO outbox VALUES (1, 2, 'k', 'lower'); INSERT INTO "Outbox" VALUES (1, 2, 'k', 'upper')`)
	f.mustDrain()
	f.requireRecords(f.topic("lower"), `key "k" value "lower" id="1"`)
	f.requireRecords(f.topic("upper"), `key "k" value "upper" id="2"`)
}
