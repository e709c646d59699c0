package reconcile

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// Two tables with ids of their own sequences: a record of the other table's event is no
// sign of this one's, and hides nothing.
func TestRunTellsTheIDsOfTwoTablesApart(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Kafka(t), nil)
	other := f.cfg.Router.Sources[0]
	other.Table = "refund"
	other.Routes = []router.Route{{Topic: f.broker.NewTopic(t, 1, nil)}}
	f.exec(`CREATE TABLE refund (LIKE outbox INCLUDING ALL)`)
	f.exec(`ALTER PUBLICATION ` + pgx.Identifier{f.db.Publication}.Sanitize() + ` ADD TABLE refund`)
	f.exec(`INSERT INTO refund (id, kind, key, type, version, payload) VALUES ('e9', 'refund', 'k', 'Refunded', 1, '{}')`)
	f.insert(0, 4)
	rest := f.records("id <> 'e0'")
	f.cfg.Router.Sources = append(f.cfg.Router.Sources, other)
	f.cover()
	f.produce(rest...)
	refund := func(id string) *kgo.Record {
		return &kgo.Record{Topic: other.Routes[0].Topic, Key: []byte("k"), Value: []byte("{}"), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}}}
	}
	f.produce(refund("e0"), refund("e1")) // their rows are purged; those of the outbox are others
	r := f.run(Options{}).Report
	want(t, "missing", ids(r.Findings.Missing), []string{"e0", "e9"})
	want(t, "different, only in a topic", []int64{r.Different, *r.TopicOnly}, []int64{0, 2})
}
