package e2e

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/router"
	"github.com/postrider/postrider/router/goldentest"
)

// requireTableAgrees reads the fixture's tables by SQL under a role with hostile display
// settings, and compares each message with the record that the stream gave for the row:
// topic, key, value, headers, timestamp. n rows are expected.
func (f *fixture) requireTableAgrees(n int) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := outbox.Open(ctx, outbox.Config{
		ConnString: f.hostileReader(), AppName: "test", Publications: []string{f.db.Publication}, Router: f.cfg.Router,
	})
	must(f.t, err)
	defer r.Close(ctx)
	var task int64
	must(f.t, f.session(ctx).QueryRow(ctx, `INSERT INTO postrider.task (publisher, kind, created_by) VALUES ('test', 'replay', 'test') RETURNING id`).Scan(&task))
	planned, err := r.Plan(ctx, task, outbox.Selection{})
	must(f.t, err)
	if planned.Items != int64(n) || planned.Shared != 0 || planned.WithoutID != 0 {
		f.t.Errorf("planned %+v, want %d", planned, n)
	}
	records := map[string]map[string]testkit.Record{}
	must(f.t, r.Items(ctx, task, 0, func(n int64, msg *event.Message, refusal *event.Refusal) error {
		if msg == nil || refusal != nil {
			return fmt.Errorf("item %d: %w", n, refusal)
		}
		if records[msg.Topic] == nil {
			records[msg.Topic] = f.byID(msg.Topic, msg.Headers[0].Name)
		}
		rec, ok := records[msg.Topic][string(msg.EventID)]
		if !ok {
			f.t.Errorf("the stream gave no event %s for topic %s", msg.EventID, msg.Topic)
			return nil
		}
		f.requireEqual(msg, rec)
		return nil
	}))
}

// hostileReader is the DSN of a role that may read, and whose settings change how values look.
func (f *fixture) hostileReader() string {
	f.t.Helper()
	role := testkit.Unique(f.t)
	var tables []migrations.Table
	for _, s := range f.cfg.Router.Sources {
		tables = append(tables, migrations.Table{Schema: s.Schema, Name: s.Table})
	}
	ddl := migrations.GrantsSQL(migrations.Grants{Role: role, Database: f.db.Name, Outbox: tables}) + "; ALTER ROLE " + role + " PASSWORD 'x'"
	for _, s := range hostileSettings {
		ddl += fmt.Sprintf("; ALTER ROLE %s SET %s", role, s)
	}
	f.db.Exec(f.t, ddl)
	f.t.Cleanup(func() { f.db.Exec(f.t, fmt.Sprintf("DROP OWNED BY %[1]s; DROP ROLE %[1]s", role)) })
	return f.db.As(role, "x")
}

// byID gives a topic's records by their event ids.
func (f *fixture) byID(topic, header string) map[string]testkit.Record {
	f.t.Helper()
	records := map[string]testkit.Record{}
	for _, r := range f.broker.ReadAll(f.t, topic) {
		id, _ := r.Header(header)
		records[string(id)] = r
	}
	return records
}

func (f *fixture) requireEqual(msg *event.Message, rec testkit.Record) {
	f.t.Helper()
	same := func(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
	equal := same(msg.Key, rec.Key) && same(msg.Value, rec.Value) && len(msg.Headers) == len(rec.Headers) &&
		msg.TimestampMillis == rec.Timestamp.UnixMilli() && (msg.Partition == event.NoPartition || msg.Partition == rec.Partition)
	for i := range min(len(msg.Headers), len(rec.Headers)) {
		equal = equal && msg.Headers[i].Name == rec.Headers[i].Key && same(msg.Headers[i].Value, rec.Headers[i].Value)
	}
	if equal {
		return
	}
	text := "key " + show(msg.Key) + " value " + show(msg.Value)
	for _, h := range msg.Headers {
		text += fmt.Sprintf(" %s=%s", h.Name, show(h.Value))
	}
	f.t.Errorf("event %s: the table gives\n  %s at %d\nthe stream gave\n  %s at %d", msg.EventID, text, msg.TimestampMillis, spell(rec), rec.Timestamp.UnixMilli())
}

// TestTableGivesTheStreamsBytes: a value of every type, read from the table by a role
// with hostile settings, becomes the record that the stream made of it (rule 10, trap
// 26, cases C01, C02 and C03).
func TestTableGivesTheStreamsBytes(t *testing.T) {
	t.Parallel()
	ddl, inserts := typeTables()
	f := newFixtureOf(t, testkit.Postgres(t), ddl+displayTable+"; CREATE PUBLICATION %s FOR ALL TABLES", func(f *fixture) (sources []router.Source) {
		for i := range typeCases {
			sources = append(sources, router.Source{
				Schema: "public", Table: fmt.Sprintf("ob%d", i), Routes: []router.Route{{Topic: f.topic("all")}},
				Mapping: router.Mapping{EventID: "id", Key: "p", EmptyKey: router.EmptyKeyAllow, Payload: "p", Headers: columns("p")},
			})
		}
		return append(sources, router.Source{
			Schema: "public", Table: "outbox", Routes: []router.Route{{Topic: f.topic("display")}},
			Mapping: router.Mapping{EventID: "id", Key: "k", Payload: "p", Headers: columns("tz", "ts", "d", "t", "ttz", "iv", "by", "f8", "f4", "m", "txt", "arr", "farr", "r", "reg", "typ", "x")},
		})
	})
	f.createTopic("all", 1, nil)
	f.createTopic("display", 1, nil)
	f.db.Exec(t, inserts+";"+displayRows)
	f.mustDrain()
	f.requireTableAgrees(len(typeCases) + 2)
}

// TestTableGivesTheReferencesRecords: the same for the golden scenarios, with envelopes,
// headers in Debezium's forms, timestamps and partitions.
func TestTableGivesTheReferencesRecords(t *testing.T) {
	t.Parallel()
	scenarios, err := goldentest.Load(goldenFile)
	must(t, err)
	for _, s := range scenarios {
		if goldenBetter[s.Name] != nil || slices.ContainsFunc(s.Statements, func(sql string) bool { return !strings.HasPrefix(strings.ToLower(sql), "insert") }) {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			f := newGoldenFixture(t, &s)
			f.mustDrain()
			f.requireTableAgrees(len(s.Records))
		})
	}
}

// TestTableOfPartitions: however a partitioned outbox is published, its rows are read
// under the root, whatever the order of the columns in the leaf (trap 25).
func TestTableOfPartitions(t *testing.T) {
	t.Parallel()
	for name, publication := range map[string]string{
		"by leaves":            "FOR TABLE outbox WITH (publish = 'insert')",
		"by root":              "FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)",
		"every leaf by name":   `FOR TABLE outbox_1, old."Outbox 2", outbox_33, outbox_34, outbox_rest`,
		"one leaf is left out": `FOR TABLE outbox_1, old."Outbox 2", outbox_33, outbox_34`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newPartitionedFixture(t, "FOR TABLE outbox")
			f.db.Exec(t, "DROP PUBLICATION "+quoted(f.db.Publication)+"; CREATE PUBLICATION "+quoted(f.db.Publication)+" "+publication+
				"; SELECT pg_drop_replication_slot('"+f.db.Slot+"')")
			f.db.Exec(t, "SELECT pg_create_logical_replication_slot('"+f.db.Slot+"', 'pgoutput')")
			for _, id := range []string{"1", "2", "3", "4", "5"} {
				f.put(id, "payload")
			}
			if name == "one leaf is left out" {
				// The relay refuses such a publication; the reader takes what it publishes.
				requireRows(t, f, 4)
				return
			}
			f.mustDrain()
			f.requireTableAgrees(5)
		})
	}
}

// requireRows counts what the reader takes for events.
func requireRows(t *testing.T, f *fixture, want int64) {
	t.Helper()
	r, err := outbox.Open(t.Context(), outbox.Config{ConnString: f.db.DSN, Publications: []string{f.db.Publication}, Router: f.cfg.Router})
	must(t, err)
	defer r.Close(t.Context())
	n, err := r.Number(t.Context(), outbox.Selection{})
	must(t, err)
	if n != want {
		t.Errorf("%d rows, want %d", n, want)
	}
}

// TestTableOfAPublicationsPart: columns and rows that the publication leaves out are left out by
// the reader of the table too (rules 10 and 21).
func TestTableOfAPublicationsPart(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	if db.VersionNum(t) < 150000 {
		t.Skip("column lists and row filters came with 15")
	}
	f := newFixtureOf(t, db, alterTable+`; ALTER TABLE outbox ADD more text DEFAULT 'more', ADD left_out int DEFAULT 1;
		CREATE PUBLICATION %s FOR TABLE outbox(payload, aggregate_id, id, aggregate_type, event_type, more)
		WHERE (get_byte(decode(md5(coalesce(aggregate_id, '')), 'hex'), 15) % 2 = 0 AND id <> 'x''\') WITH (publish = 'insert')`,
		func(f *fixture) []router.Source { return f.config().Router.Sources })
	f.mapping().Headers = columns("more")
	f.createTopic("order", 1, nil)
	f.db.Exec(t, "INSERT INTO outbox SELECT i::text, 'order', 'k' || i, 'X', to_jsonb(i) FROM generate_series(1, 100) i")
	f.mustDrain()
	records := f.broker.ReadAll(t, f.topic("order"))
	if len(records) == 0 || len(records) == 100 {
		t.Fatalf("%d records", len(records))
	}
	f.requireTableAgrees(len(records))
}
