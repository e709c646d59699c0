package e2e

import (
	"testing"

	"github.com/postrider/postrider/internal/testkit"
)

// TestRowReachesTopic is the thinnest whole path: a committed row is published with
// its key and headers, and the slot is confirmed past it.
func TestRowReachesTopic(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.insert("order", "order-1", `{"a":1}`)
	f.mustDrain()
	records := f.broker.ReadAll(t, f.topic("order"))
	if len(records) != 1 {
		t.Fatalf("%d records, want 1", len(records))
	}
	r := records[0]
	if string(r.Key) != "order-1" || string(r.Value) != `{"a": 1}` || r.Partition != 10 {
		t.Errorf("key %q value %q partition %d", r.Key, r.Value, r.Partition)
	}
	if id, ok := r.Header("id"); !ok || string(id) != f.scalar("SELECT id::text FROM outbox") {
		t.Errorf("header id is %q", id)
	}
	if end := f.walEnd(); f.confirmed() > end {
		t.Errorf("confirmed %s past the WAL end %s", f.confirmed(), end)
	}
	// A second run finds nothing to do (case C23a).
	f.mustDrain()
	if again := f.broker.ReadAll(t, f.topic("order")); len(again) != 1 {
		t.Errorf("%d records after a clean restart, want 1", len(again))
	}
}
