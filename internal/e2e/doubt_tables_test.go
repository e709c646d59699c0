package e2e

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// TestDoubtfulStartOfTwoTables: ids of two tables are nobody's but their own, as sequences give
// them. That one comes on the stream, or stands in the other's topic, does not settle a
// suspect of the same id (rule 4).
func TestDoubtfulStartOfTwoTables(t *testing.T) {
	t.Parallel()
	for name, topic := range map[string]string{"missing": "", "in the other's topic": "second", "in its own topic": "order"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixtureWith(t, testkit.Postgres(t), testkit.Kafka(t),
				strings.Replace(sharedTable, "id uuid PRIMARY KEY DEFAULT gen_random_uuid()", "id bigserial PRIMARY KEY", 1)+
					"; CREATE TABLE second (id bigserial PRIMARY KEY, aggregate_id text, payload jsonb)")
			f.db.Exec(t, "ALTER PUBLICATION "+quoted(f.db.Publication)+" ADD TABLE second")
			f.createTopic("order", 1, nil)
			f.createTopic("second", 1, nil)
			f.cfg.Router.Sources = append(f.cfg.Router.Sources, router.Source{
				Schema: "public", Table: "second", Mapping: router.Mapping{EventID: "id", Key: "aggregate_id", Payload: "payload"},
				Routes: []router.Route{{Topic: f.topic("second")}}, OnRefusal: router.OnRefusalHalt,
			})
			f.extra = fmt.Sprintf(`  - table: public.second
    mapping: {event_id: id, key: aggregate_id, payload: payload}
    routes: [{topic: %s.second}]
    on_refusal: halt
`, f.prefix)
			f.idleUntilCrash(nil)
			f.db.Exec(t, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", f.db.Slot))
			f.insert("order", "k", "2") // has the id 2, and goes missing
			f.db.Exec(t, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput')", f.db.Slot))
			if topic != "" {
				f.publishByHand(&kgo.Record{Topic: f.topic(topic), Key: []byte("k"), Value: []byte("2"), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte("2")}}}, false)
			}
			f.db.Exec(t, "INSERT INTO second(aggregate_id, payload) SELECT 'k', to_jsonb(i) FROM generate_series(1, 3) i")
			if topic == "order" {
				f.mustDrain()
				return
			}
			out, err := exec.Command(built(t), "checkpoint", "verify", "--config", f.yaml("")).CombinedOutput()
			if err == nil || !strings.Contains(string(out), "1 of them are neither on the stream nor parked") {
				t.Errorf("verify: %v\n%s", err, out)
			}
			requireRefusedStart(t, f.drain(), operr.Slot, "2 of ", "outbox", "their topics do not have them")
			if got := values(f.broker.ReadAll(t, f.topic("order"))); slices.Contains(got, "2") {
				t.Errorf("published %v", got)
			}
		})
	}
}
