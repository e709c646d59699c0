package reconcile

import (
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// A receipt names a place; what stands there now decides. Where it is not the event's
// record, the topics are searched as without one.
func TestTraceFollowsReceipts(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.KafkaReal(t), nil)
	f.insert(0, 20)
	list := f.records("true")
	f.produce(again(list[0]))
	gone := f.broker.ReadAll(t, f.topic)[0]
	f.broker.Trim(t, f.topic, 1)
	for i, rec := range list[1:] {
		if i+1 != 5 && i+1 != 7 {
			f.produce(rec)
		}
	}
	f.produce(again(list[6], markReplayed))
	f.cover()
	f.exec(`DELETE FROM outbox WHERE id IN ('e0', 'e1', 'e2', 'e5')`)
	place := map[string][]string{}
	for _, rec := range f.broker.ReadAll(t, f.topic) {
		id, _ := rec.Header("id")
		var at string
		if err := f.conn.QueryRow(f.ctx(), `INSERT INTO postrider.receipt SELECT 'test', $1, $2, $3, $4::bigint, now() + make_interval(secs => $4::bigint), '0/10', 1 RETURNING partition || '/' || kafka_offset`,
			string(id), rec.Topic, rec.Partition, rec.Offset).Scan(&at); err != nil {
			t.Fatal(err)
		}
		place[string(id)] = append(place[string(id)], at)
	}
	f.exec(`INSERT INTO postrider.receipt SELECT * FROM postrider.receipt WHERE event_id = 'e1'`) // its COPY came twice
	f.exec(`INSERT INTO postrider.receipt VALUES ('test', 'e0', $1, $2, $3, now())`, f.topic, gone.Partition, gone.Offset)
	f.exec(`UPDATE postrider.receipt SET kafka_offset = 1000000 WHERE event_id IN ('e2', 'e3')`)
	f.exec(`INSERT INTO postrider.receipt SELECT publisher, 'e4', topic, partition, kafka_offset, acked_at FROM postrider.receipt WHERE event_id = 'e1' LIMIT 1`)
	f.exec(`DELETE FROM postrider.receipt WHERE event_id = 'e4' AND commit_lsn IS NOT NULL`)
	f.exec(`INSERT INTO postrider.receipt VALUES ('test', 'e5', 'no-such-topic', 0, 0, now()), ('other', 'e8', $1, 0, 1000000, now())`, f.topic)
	f.exec(`INSERT INTO postrider.receipt VALUES ('test', 'e7', $1, 9, 0, now())`, f.topic)

	for id, want := range map[string]struct {
		state   Where
		now     string
		records int
		code    int
	}{
		"e0": {Published, "removed", 0, 0}, "e1": {OnlyInTopic, "found", 1, 0}, "e2": {OnlyInTopic, "beyond_end", 1, 0}, "e3": {Published, "beyond_end", 1, 0},
		"e4": {Published, "another_event", 1, 0}, "e5": {Missing, "no_topic", 0, 8}, "e6": {Published, "found found", 2, 0}, "e7": {Missing, "no_topic", 0, 8},
		"e8": {Published, "found", 1, 0},
	} {
		tr, err := Trace(f.ctx(), f.cfg, id, nil)
		if err != nil {
			t.Fatal(err)
		}
		code := 0
		if err := tr.Error(); err != nil {
			code = operr.ClassOf(err).ExitCode()
		}
		var now []string
		for _, r := range tr.Receipts {
			now = append(now, string(r.Now))
		}
		if tr.State != want.state || strings.Join(now, " ") != want.now || len(tr.Records) != want.records || code != want.code {
			t.Errorf("%s: %s (%s), receipts %q, %d records, code %d; want %+v; searched %q", id, tr.State, tr.Words, now, len(tr.Records), code, want, tr.Searched)
		}
		if followed := len(tr.Receipts); (want.now == "found" || want.now == "removed") && len(tr.Searched) != followed {
			t.Errorf("%s: more than its receipt's place was read: %q", id, tr.Searched)
		}
	}
	// A topic that is asked for is searched all the same, and nothing is listed twice.
	tr, err := Trace(f.ctx(), f.cfg, "e15", []string{f.topic})
	if err != nil || len(tr.Searched) < 2 || len(tr.Records) != len(place["e15"]) {
		t.Errorf("%v, %+v", err, tr)
	}
	// Receipts that cannot be read are an aid that is missing.
	f.exec(`ALTER TABLE postrider.receipt RENAME COLUMN topic TO away`)
	if tr, err := Trace(f.ctx(), f.cfg, "e1", nil); err != nil || tr.State != OnlyInTopic || len(tr.Receipts) != 0 || !strings.Contains(tr.Searched[0], "receipts: ") {
		t.Errorf("%v, %+v", err, tr)
	}
}
