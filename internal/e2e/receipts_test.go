package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/testkit"
)

// place is where a record stands: "topic/partition/offset".
func place(topic string, partition int32, offset int64) string {
	return fmt.Sprintf("%s/%d/%d", topic, partition, offset)
}

// receipts are the event ids by place; a place with two ids fails the test.
func (f *fixture) receipts() map[string]string {
	f.t.Helper()
	list := strings.Fields(f.scalar(`SELECT coalesce(string_agg(concat_ws('/', topic, partition, kafka_offset) || '=' || event_id, ' '), '') FROM postrider.receipt`))
	ids := make(map[string]string, len(list))
	for _, r := range list {
		at, id, _ := strings.Cut(r, "=")
		if ids[at] != "" && ids[at] != id {
			f.t.Errorf("%s is said to hold %s and %s", at, ids[at], id)
		}
		ids[at] = id
	}
	return ids
}

// requireTrueReceipts holds each receipt against the record at its place, and gives how
// many of the topics' records have one, and how many not.
func (f *fixture) requireTrueReceipts(topics ...string) (with, without int) {
	f.t.Helper()
	receipts := f.receipts()
	for _, topic := range topics {
		for _, r := range f.broker.ReadAll(f.t, topic) {
			at := place(r.Topic, r.Partition, r.Offset)
			id, _ := r.Header("id")
			switch receipts[at] {
			case string(id):
				with++
			case "":
				without++
			default:
				f.t.Errorf("%s holds %s, the receipt says %s", at, id, receipts[at])
			}
			delete(receipts, at)
		}
	}
	for at, id := range receipts {
		f.t.Errorf("a receipt of %s names %s, where no record is", id, at)
	}
	return with, without
}

// Each event has one receipt, which is as the topic says. The relay ends when the last ones
// are written. With receipts off the table stays as it is, and no session is opened for it.
func TestReceiptsSayWhatTheTopicsHold(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	insert := func(from, until int) {
		f.db.Exec(t, fmt.Sprintf(`DO $$ BEGIN FOR tx IN %d..%d LOOP
			INSERT INTO outbox(aggregate_type, aggregate_id, payload) SELECT CASE WHEN i %% 3 = 0 THEN 'order' ELSE 'shop' END, 'k' || (tx + i) %% 50, '{}' FROM generate_series(1, 20) i;
			COMMIT; END LOOP; END $$`, from, until-1))
	}
	insert(0, 50)
	f.mustDrain()
	if n := f.scalar("SELECT count(*)::text FROM postrider.receipt"); n != "0" {
		t.Errorf("%s receipts of a relay that keeps none", n)
	}
	f.cfg.KeepReceipts = time.Hour
	began := time.Now()
	r := f.start()
	insert(50, 150)
	f.awaitConfirmed(f.walEnd())
	r.mustStop()
	with, without := f.requireTrueReceipts(f.topic("order"), f.topic("shop"))
	if with != 2000 || without != 1000 {
		t.Errorf("%d records have a receipt, %d have none", with, without)
	}
	if n := r.metric("postrider_receipts_written_total"); n != 2000 {
		t.Errorf("the metric says %v", n)
	}
	if n := f.scalar(`SELECT concat_ws(' ', count(*), count(DISTINCT (commit_lsn, event_index)), count(DISTINCT commit_lsn), max(event_index), bool_and(publisher = 'test'),
		bool_and(acked_at BETWEEN to_timestamp(` + fmt.Sprint(began.Unix()-1) + `) AND now() + '1 min')) FROM postrider.receipt`); n != "2000 2000 100 19 t t" {
		t.Errorf("receipts: %s", n)
	}
}

// Receipts that are old go, also where no event comes.
func TestReceiptsArePruned(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.cfg.KeepReceipts, f.cfg.Timers.Prune = time.Hour, 50*time.Millisecond
	f.db.Exec(t, `INSERT INTO postrider.receipt SELECT p, 'old-' || n, 't', 0, n, now() - interval '2 h' FROM unnest('{test,other}'::text[]) p, generate_series(1, 12000) n`)
	r := f.start()
	testkit.EventuallyTrue(t, patience, "old receipts stay", func() bool {
		return f.scalar("SELECT count(*)::text FROM postrider.receipt WHERE publisher = 'test'") == "0"
	})
	f.insert("order", "k", "1")
	testkit.EventuallyTrue(t, patience, "no receipt", func() bool {
		return f.scalar("SELECT count(*)::text FROM postrider.receipt WHERE publisher = 'test'") == "1"
	})
	r.mustStop()
	if n := f.scalar("SELECT count(*)::text FROM postrider.receipt WHERE publisher = 'other'"); n != "12000" {
		t.Errorf("%s receipts of another publisher are left", n)
	}
}

// Nothing waits for receipts: while their table cannot be written events are published and
// confirmed. What was kept meanwhile is written when the lock is gone.
func TestReceiptsHoldUpNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.cfg.KeepReceipts = time.Hour
	conn := f.db.Conn(t)
	if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE postrider.receipt IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	r := f.start()
	for i := range 50 {
		f.insert("order", "k"+strconv.Itoa(i), "1")
	}
	f.awaitRecords(f.topic("order"), 50)
	// The holder of the lock has a transaction id, and is the oldest: the latch waits for it,
	// the position does not.
	testkit.EventuallyTrue(t, patience, "the position waits", func() bool {
		return f.scalar("SELECT events_published::text FROM postrider.checkpoint") == "50"
	})
	if _, err := conn.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	r.mustStop()
	if with, without := f.requireTrueReceipts(f.topic("order")); with != 50 || without != 0 {
		t.Errorf("%d records have a receipt, %d have none", with, without)
	}
}

// A receipt is never wrong, whatever is killed: relay, broker or PostgreSQL. Those that are
// lost are of the moments before.
func TestReceiptsAreNeverWrong(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t, devstack.PostgresOptions{})
	kafka := testkit.PrivateKafka(t, devstack.KafkaOptions{})
	f := newFixture(t, testkit.NewDB(t, server.DSN()), kafka.Broker)
	f.createTopic("order", 6, nil)
	config := f.yaml("\nreceipts: {keep: 1h}\n")
	relay := spawn(t, "run", "--config", config)
	load := f.startLoad(4, 40, 3*time.Millisecond)
	ctx := context.Background()
	for _, fault := range []string{"relay", "broker", "postgres fast", "broker", "postgres immediate", "relay"} {
		load.pauseAt(t, 500+int64(rand.IntN(400)))
		t.Logf("fault: %s", fault)
		switch fault {
		case "relay":
			relay.kill()
			relay = spawn(t, "run", "--config", config)
		case "broker":
			must(t, kafka.Server.Kill(0))
			must(t, kafka.Server.StartNode(ctx, 0))
		case "postgres fast":
			must(t, server.Restart(ctx, devstack.Fast))
		case "postgres immediate":
			must(t, server.Restart(ctx, devstack.Immediate))
		}
	}
	load.pauseAt(t, 600)
	load.end()
	f.awaitConfirmed(f.walEnd())
	if code := relay.terminate(); code != 0 {
		t.Errorf("exit code %d; it said:\n%s", code, relay.said())
	}
	with, without := f.requireTrueReceipts(f.topic("order"))
	t.Logf("%d committed rows; %d records have a receipt, %d have none", load.rows.Load(), with, without)
	if with == 0 {
		t.Error("no receipt at all")
	}
}

// An event whose row is purged is found by its receipt, without reading topics; so it is
// told when the record is gone, too.
func TestTraceByReceipt(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.KafkaReal(t))
	config := f.yaml("\nreceipts: {keep: 1h}\n")
	for i := range 30 {
		f.insert("order", "k"+strconv.Itoa(i), "1")
	}
	if p := spawn(t, "run", "--until-lsn", "now", "--config", config); p.wait(patience) != 0 {
		t.Fatal(p.said())
	}
	id := f.scalar("DELETE FROM outbox WHERE aggregate_id = 'k7' RETURNING id::text")
	at := f.scalar("SELECT concat_ws('/', topic, partition, kafka_offset) FROM postrider.receipt WHERE event_id = '" + id + "'")
	trail := func() (state string, receipts, records []string, searched int) {
		out := output(t, "trace", id, "--json", "--config", config)
		var got struct {
			State             string
			Searched          []string
			Receipts, Records []struct {
				Topic     string
				Partition int32
				Offset    int64
				Now       string
			}
		}
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		for _, r := range got.Receipts {
			receipts = append(receipts, place(r.Topic, r.Partition, r.Offset)+" "+r.Now)
		}
		for _, r := range got.Records {
			records = append(records, place(r.Topic, r.Partition, r.Offset))
		}
		return got.State, receipts, records, len(got.Searched)
	}
	if state, receipts, records, searched := trail(); state != "only_in_topic" || strings.Join(receipts, ",") != at+" found" || strings.Join(records, ",") != at || searched != 1 {
		t.Errorf("%s, receipts %q, records %q, %d searches; want %s", state, receipts, records, searched, at)
	}
	if out := output(t, "trace", id, "--config", config); !strings.Contains(out, "acknowledged") || !strings.Contains(out, "(receipt), which is there") {
		t.Error(out)
	}
	f.broker.Trim(t, f.topic("order"), 1000)
	if state, receipts, records, searched := trail(); state != "published" || strings.Join(receipts, ",") != at+" removed" || len(records) != 0 || searched != 1 {
		t.Errorf("trimmed: %s, receipts %q, records %q, %d searches", state, receipts, records, searched)
	}
}

// What backfill, replay and recover publish has receipts too; they name no position of the
// stream.
func TestReceiptsOfCommands(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	config := f.yaml("\nreceipts: {keep: 1h}\n")
	command := func(args ...string) {
		t.Helper()
		if p := spawn(t, append(args, "--config", config)...); p.wait(patience) != 0 {
			t.Fatal(p.said())
		}
	}
	f.db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", f.db.Slot))
	fillOrders(f, 1, 10)
	command("setup", "--lock-timeout", "60s")
	command("backfill")
	fillOrders(f, 11, 15)
	relay := spawn(t, "run", "--config", config)
	f.awaitCovered()
	if relay.terminate() != 0 {
		t.Fatal(relay.said())
	}
	id := f.scalar("SELECT id::text FROM outbox WHERE payload->>'N' = '12'")
	command("replay", "--event-id", id, "--yes", "--reason", "a test")
	f.db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", f.db.Slot))
	fillOrders(f, 16, 18)
	command("recover", "--yes", "--lock-timeout", "60s")

	if with, without := f.requireTrueReceipts(f.topic("order")); with != 19 || without != 0 {
		t.Errorf("%d records have a receipt, %d have none", with, without)
	}
	if n := f.scalar("SELECT concat_ws(' ', count(*), count(commit_lsn), count(event_index), count(DISTINCT event_id)) FROM postrider.receipt"); n != "19 5 5 18" {
		t.Errorf("receipts: %s", n)
	}
	if out := output(t, "trace", id, "--config", config); !strings.Contains(out, "(receipt, the first of 2), which is there") || !strings.Contains(out, "published, 2 times") {
		t.Error(out)
	}
}

// Where the publication is for all tables, receipts come on the stream like any other row:
// they are no events, they make no further receipts, and they can be deleted.
func TestReceiptsInAPublicationForAllTables(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.db.Exec(t, fmt.Sprintf("DROP PUBLICATION %[1]s; CREATE PUBLICATION %[1]s FOR ALL TABLES", quoted(f.db.Publication)))
	f.db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%[1]s'); SELECT pg_create_logical_replication_slot('%[1]s', 'pgoutput')", f.db.Slot))
	f.cfg.KeepReceipts, f.cfg.Timers.Prune = time.Hour, 50*time.Millisecond
	f.cfg.Replication.StatusInterval = statusEvery
	r := f.start()
	for i := range 20 {
		f.insert("order", "k"+strconv.Itoa(i), "1")
	}
	receipts := func(n string) func() bool {
		return func() bool { return f.scalar("SELECT count(*)::text FROM postrider.receipt") == n }
	}
	testkit.EventuallyTrue(t, patience, "not all have a receipt", receipts("20"))
	f.requireNoOwnWAL()
	f.requireTrueReceipts(f.topic("order"))
	f.db.Exec(t, "UPDATE postrider.receipt SET acked_at = acked_at - interval '2 h'")
	testkit.EventuallyTrue(t, patience, "old receipts stay", receipts("0"))
	r.mustStop()
	others := f.scalar("SELECT (20 + (SELECT count(*) FROM postrider.checkpoint) + (SELECT count(*) FROM postrider.audit))::text")
	if n := r.metric("postrider_rows_unrouted_total"); fmt.Sprint(n) != others {
		t.Errorf("%v rows of other tables came on the stream, want %s: 20 receipts, and what the relay writes once", n, others)
	}
	if n := len(f.awaitRecords(f.topic("order"), 20)); n != 20 {
		t.Errorf("%d records", n)
	}
}
