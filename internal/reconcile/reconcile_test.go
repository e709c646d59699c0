package reconcile

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// damage publishes 1000 rows with a fault of each kind, and says what a comparison must find.
func damage(f *fixture) {
	f.insert(0, 1000)
	all := f.records("true")
	byN := func(n int) *kgo.Record { return all[n] }
	missing := []int{5, 333, 998}
	parked := []int{41, 42}
	left := slices.Concat(missing, parked, []int{43})
	wrongValue, wrongHeader, wrongKey, healed := 100, 101, 102, 103
	var out []*kgo.Record
	for n, rec := range all {
		switch {
		case slices.Contains(left, n):
			continue
		case n == wrongValue || n == healed:
			rec = again(rec)
			rec.Value = []byte(`{"n": "other"}`)
		case n == wrongHeader:
			rec = again(rec)
			rec.Headers[1].Value = []byte("Cancelled")
		case n == wrongKey:
			rec = again(rec)
			rec.Key = []byte("k-other")
		case n == 520: // e540 is the next of its key: they change places
			continue
		}
		out = append(out, rec)
		if n == 540 {
			out = append(out, byN(520))
		}
	}
	f.produce(out...)
	// Twice, and thrice: later than all others, which is a repetition and no disorder.
	f.produce(again(byN(200)), again(byN(201)), again(byN(201)))
	// Copies that say what they are.
	f.produce(again(byN(300), markReplayed), again(byN(301), markReplayed), again(byN(302), markRecovered), again(byN(303), markBackfilled))
	f.produce(again(byN(healed), markReplayed))
	// Somebody else's, and records without an id.
	for _, id := range []string{"x1", "x2"} {
		rec := again(byN(0))
		rec.Headers[0].Value = []byte(id)
		f.produce(rec)
	}
	f.produce(&kgo.Record{Topic: f.topic, Key: []byte("k1"), Value: []byte("hello")})
	f.park("e41", f.topic, "parked")
	f.park("e42", f.topic, "retry")
	f.park("e43", f.topic, "discarded")
	f.cover()
	f.insert(1000, 1005) // after the last tick
}

// case C41: reconcile tells the truth: each kind of fault is found and told from the others, in
// one pass and in several.
func TestRunTellsFaultsApart(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Kafka(t), nil)
	damage(f)
	for _, most := range []int{0, 150} {
		t.Run(fmt.Sprintf("at most %d rows", most), func(t *testing.T) {
			f.t = t
			got := f.run(Options{MostRows: most, Examples: 20})
			r := got.Report
			defer func() {
				if t.Failed() {
					text, _ := json.Marshal(r)
					t.Logf("%s", text)
				}
			}()
			want(t, "ok", r.OK, false)
			want(t, "rows", r.Rows, 1005)
			want(t, "missing", ids(r.Findings.Missing), []string{"e333", "e5", "e998"})
			want(t, "different", ids(r.Findings.Different), []string{"e100", "e101", "e102"})
			want(t, "different by", r.DifferentBy, map[string]int{"value": 1, "headers": 1, "key": 1})
			want(t, "duplicates", ids(r.Findings.Duplicates), []string{"e200", "e201"})
			want(t, "duplicate records", r.DuplicateRecords, 3)
			want(t, "out of order", ids(r.Findings.OutOfOrder), []string{"e520"})
			want(t, "topic only", ids(r.Findings.TopicOnly), []string{"x1", "x2"})
			want(t, "topic only", *r.TopicOnly, 2)
			want(t, "copies", r.Copies, Copies{Replayed: 3, Recovered: 1, Backfilled: 1})
			want(t, "parked, discarded, healed, not due", []int64{r.Parked, r.Discarded, r.Healed, r.NotDue}, []int64{2, 1, 1, 5})
			want(t, "agreed", r.Agreed, 1005-3-3-3-5)
			want(t, "missing, different", []int64{r.Missing, r.Different}, []int64{3, 3})
			want(t, "repair", len(got.Repair), 6)
			want(t, "records without an id", r.Topics[0].WithoutID, 1)
			if passes := r.Passes; (most == 0) != (passes == 1) {
				t.Errorf("%d passes", passes)
			}
			for _, d := range r.Findings.Different {
				if d.EventID == "e101" {
					want(t, "fields of e101", d.Fields, []string{"header event_type"})
				}
			}
			if o := r.Findings.OutOfOrder; len(o) == 1 {
				want(t, "e520 stands behind", o[0].After, "e540")
			}
		})
	}
}

// What is right is right, and says so; duplicates up to a number are allowed.
func TestRunAgrees(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Kafka(t), nil)
	f.insert(0, 100)
	f.cover()
	list := f.records("true")
	f.produce(list...)
	r := f.run(Options{}).Report
	want(t, "ok, agreed", []any{r.OK, r.Agreed, r.Rows}, []any{true, 100, 100})
	f.produce(again(list[3]), again(list[4]))
	r = f.run(Options{MostDuplicates: 2}).Report
	want(t, "ok with two allowed", []any{r.OK, r.Duplicates}, []any{true, 2})
	r = f.run(Options{MostDuplicates: 1}).Report
	want(t, "ok with one allowed", r.OK, false)
	// Filtered: nothing is said about what only the topic has.
	r = f.run(Options{Aggregate: "k1", MostDuplicates: 2}).Report
	want(t, "of one key", []any{r.OK, r.Rows, r.TopicOnly == nil}, []any{true, 5, true})
}

// rule 17: records of an aborted transaction are none; while a transaction is open behind
// which a record may stand, nothing is called missing.
func TestRunKeepsToCommittedRecords(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Kafka(t), nil)
	f.insert(0, 40)
	f.cover()
	list := f.records("true")
	f.produce(list[:39]...)
	txn := f.broker.Client(t, kgo.TransactionalID(f.topic), kgo.TransactionTimeout(time.Minute))
	if err := txn.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := txn.ProduceSync(f.ctx(), list[39]).FirstErr(); err != nil {
		t.Fatal(err)
	}
	r := f.run(Options{}).Report
	want(t, "while it is open: held, missing, ok", []any{r.Held, r.Missing, r.OK}, []any{1, 0, true})
	if err := txn.EndTransaction(f.ctx(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, patience, func() error {
		if r = f.run(Options{}).Report; r.Held != 0 {
			return fmt.Errorf("%d are held", r.Held)
		}
		return nil
	})
	want(t, "after the abort: missing", ids(r.Findings.Missing), []string{"e39"})
}

// trap 28: a row that commits late is older than the window, and is compared all the same:
// by its commit, where the server keeps that, else by the snapshot of an earlier run.
func TestRunComparesRowsThatCommitLate(t *testing.T) {
	t.Parallel()
	t.Run("commit times", func(t *testing.T) {
		t.Parallel()
		compareLate(t, testkit.Postgres(t), false)
	})
	t.Run("mapped times", func(t *testing.T) {
		t.Parallel()
		server := testkit.PrivatePostgres(t, devstack.PostgresOptions{Settings: map[string]string{"track_commit_timestamp": "off"}})
		compareLate(t, testkit.NewDB(t, server.DSN()), true)
	})
}

func compareLate(t *testing.T, db *testkit.DB, bySnapshot bool) {
	f := newFixtureOn(t, db, testkit.Kafka(t), nil)
	f.insert(0, 10)
	f.cover()
	f.produce(f.records("true")...)
	tx, err := f.db.Conn(t).Begin(f.ctx())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(f.ctx(), `INSERT INTO outbox (id, kind, key, type, version, at, payload) VALUES ('e77', 'order', 'k77', 'Placed', 1, now() - interval '5 hours', '{}')`); err != nil {
		t.Fatal(err)
	}
	want(t, "before it commits: rows", f.run(Options{}).Report.Rows, 10)
	since := time.Now()
	if err := tx.Commit(f.ctx()); err != nil {
		t.Fatal(err)
	}
	window := Options{Since: since, Margin: time.Nanosecond}
	r := f.run(window).Report
	if late := r.LateSince != nil && r.LateSince.Before(since); late != bySnapshot {
		t.Fatalf("late since %v, the window begins at %s", r.LateSince, since)
	}
	want(t, "not covered yet: not due, missing", []int64{r.NotDue, r.Missing}, []int64{1, 0})
	f.cover()
	r = f.run(window).Report
	want(t, "covered: missing", ids(r.Findings.Missing), []string{"e77"})
	f.produce(f.records("id = 'e77'")...) // its time lies far before the window
	r = f.run(window).Report
	want(t, "published: ok, agreed", []any{r.OK, r.Agreed}, []any{true, 1})
}

// What retention has removed is not missing, what compaction leaves out neither.
func TestRunKnowsWhatTopicsForget(t *testing.T) {
	t.Parallel()
	b := testkit.KafkaReal(t)
	f := newFixture(t, b, nil)
	f.insert(0, 40)
	f.exec(`UPDATE outbox SET at = at - interval '2 days' WHERE substr(id, 2)::int < 20`)
	f.cover()
	list := f.records("true")
	f.produce(list...)
	trim := kadm.Offsets{}
	ends, err := b.EndOffsets(f.ctx(), f.topic)
	if err != nil {
		t.Fatal(err)
	}
	old := map[int32]int64{} // the end of what is two days old
	for _, rec := range b.ReadAll(t, f.topic) {
		if rec.Timestamp.Before(time.Now().Add(-time.Hour)) {
			old[rec.Partition] = rec.Offset + 1
		}
	}
	for p := range ends {
		trim.AddOffset(f.topic, p, old[p], -1)
	}
	if res, err := kadm.NewClient(f.client).DeleteRecords(f.ctx(), trim); err != nil || res.Error() != nil {
		t.Fatal(err, res.Error())
	}
	r := f.run(Options{}).Report
	want(t, "expired, missing, agreed", []int64{r.Expired, r.Missing, r.Agreed}, []int64{20, 0, 20})
	want(t, "trimmed", r.Topics[0].Trimmed, true)

	c := newFixture(t, b, map[string]string{"cleanup.policy": "compact"})
	c.insert(0, 60)
	c.cover()
	list = c.records("true")
	c.produce(list[20:50]...) // as if the first of each key had been compacted, and the last ten lost
	r = c.run(Options{}).Report
	want(t, "compacted topic: compacted, missing", []int64{r.Compacted, r.Missing}, []int64{30, 0})
	want(t, "compacted", r.Topics[0].Compacted, true)
}

// Without a checkpoint nothing is due, and the report says why.
func TestRunWithoutACheckpointCallsNothingMissing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Kafka(t), nil)
	f.insert(0, 3)
	r := f.run(Options{}).Report
	want(t, "ok, not due", []any{r.OK, r.NotDue}, []any{true, 3})
	if r.NotProved == "" || r.OldestNotDue == nil {
		t.Errorf("not proved %q, oldest %v", r.NotProved, r.OldestNotDue)
	}
	f.cover()
	f.exec(`UPDATE postrider.checkpoint SET system_id = '42'`)
	r = f.run(Options{}).Report
	want(t, "of another system: not due", r.NotDue, 3)
}

// What is from before the slot is not missing, until a backfill has published it.
func TestRunKnowsTheRowsFromBeforeTheSlot(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Kafka(t), nil)
	f.insert(0, 3)
	f.cover()
	f.exec(`UPDATE postrider.checkpoint SET birth_snapshot = snapshot`)
	f.insert(3, 5)
	f.cover()
	r := f.run(Options{}).Report
	want(t, "before the slot, missing", []any{r.BeforeSlot, ids(r.Findings.Missing)}, []any{3, []string{"e3", "e4"}})
	if tr, err := Trace(f.ctx(), f.cfg, "e0", nil); err != nil || tr.State != BeforeSlot {
		t.Errorf("trace: %+v, %v", tr, err)
	}
	f.produce(f.records("id = 'e0'")...) // somebody has, all the same
	r = f.run(Options{}).Report
	want(t, "published by somebody: before the slot, agreed", []int64{r.BeforeSlot, r.Agreed}, []int64{2, 1})
	f.exec(`INSERT INTO postrider.task (publisher, kind, state, created_by) VALUES ('test', 'backfill', 'done', 'test')`)
	r = f.run(Options{}).Report
	want(t, "after a backfill: before the slot, missing", []int64{r.BeforeSlot, r.Missing}, []int64{0, 4})
}

// A topic that is not there: all of its rows are missing, and say why.
func TestRunWithoutATopic(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Kafka(t), nil)
	f.cfg.Router.Sources[0].Routes[0].Topic = "absent-" + f.topic
	f.insert(0, 3)
	f.cover()
	r := f.run(Options{}).Report
	want(t, "missing", r.Missing, 3)
	want(t, "why", r.Findings.Missing[0].Why, "its topic does not exist")
}

// A record of the window whose row is outside is not alone, and rows that share an id are
// counted, not judged.
func TestRunLooksBeyondTheWindowForStrangers(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Kafka(t), nil)
	f.exec(`ALTER TABLE outbox DROP CONSTRAINT outbox_pkey`)
	f.exec(`ALTER TABLE outbox ALTER COLUMN id DROP NOT NULL`)
	f.insert(0, 10)
	until := time.Now()
	f.exec(`INSERT INTO outbox (id, kind, key, type, version, at, payload) VALUES ('e10', 'order', 'k10', 'Placed', 1, now() - interval '10 minutes', '{}')`)
	f.cover()
	f.produce(f.records("true")...)
	r := f.run(Options{Until: until}).Report
	want(t, "rows, ok, only in the topic", []any{r.Rows, r.OK, *r.TopicOnly}, []any{10, true, 0})
	f.exec(`DELETE FROM outbox WHERE id = 'e10'`)
	r = f.run(Options{Until: until}).Report
	want(t, "deleted: ok, only in the topic", []any{r.OK, ids(r.Findings.TopicOnly)}, []any{true, []string{"e10"}})
	f.exec(`INSERT INTO outbox SELECT * FROM outbox WHERE id = 'e3'`)
	f.exec(`INSERT INTO outbox (key, kind, payload) VALUES ('k', 'order', '{}')`)
	f.cover()
	r = f.run(Options{}).Report
	want(t, "shared, without id, agreed", []any{r.Shared, r.WithoutID, r.Agreed}, []any{2, 1, 9})
}
