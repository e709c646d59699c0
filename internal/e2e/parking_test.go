package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// parkedStates is "reason:state" of all parked events in order of position, ids left out.
func (f *fixture) parkedStates() string {
	f.t.Helper()
	return f.scalar(`SELECT coalesce(string_agg(reason || ':' || state, ' ' ORDER BY commit_lsn, event_index), '') FROM postrider.parked`)
}

func (f *fixture) awaitParked(want string) {
	f.t.Helper()
	testkit.Eventually(f.t, patience, func() error {
		if got := f.parkedStates(); got != want {
			return fmt.Errorf("parked: %s\nwant:   %s", got, want)
		}
		return nil
	})
}

// retryAll asks for all that is parked, as the command does.
func (f *fixture) retryAll() {
	f.t.Helper()
	f.db.Exec(f.t, `UPDATE postrider.parked SET state = 'retry' WHERE state = 'parked'; NOTIFY postrider_parked, 'test'`)
}

// ofKey gives the values of a key's records, in order.
func ofKey(records []testkit.Record, key string) string {
	var all []string
	for _, r := range records {
		if string(r.Key) == key {
			all = append(all, string(r.Value))
		}
	}
	return strings.Join(all, " ")
}

// alterTopic changes a setting of a topic.
func (f *fixture) alterTopic(aggregateType, name, value string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	admin := kadm.NewClient(f.broker.Client(f.t))
	results, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}, f.topic(aggregateType))
	must(f.t, err)
	for _, r := range results {
		must(f.t, r.Err)
	}
}

func bigPayload(n int) string {
	return fmt.Sprintf(`{"n": %d, "pad": "%s"}`, n, strings.Repeat("x", 5000))
}

// case C20: under park_aggregate the events behind a poisoned one wait, other keys do
// not; a retry after the cause is gone puts them out in order; then the key flows.
func TestParkAggregate(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.onRefusal(router.OnRefusalParkAggregate)
	f.createTopic("order", 1, map[string]string{"max.message.bytes": "2000"})
	run := f.start()
	f.insert("order", "k", "1")
	f.insert("order", "k", bigPayload(2))
	f.insert("order", "k", "3")
	f.insert("order", "k", "4")
	for n := range 4 {
		f.insert("order", "j", fmt.Sprint(n+1))
	}
	f.awaitParked("too_large:parked held:parked held:parked")
	f.awaitConfirmed(f.walEnd())
	records := f.awaitRecords(f.topic("order"), 5)
	if k, j := ofKey(records, "k"), ofKey(records, "j"); k != "1" || j != "1 2 3 4" {
		t.Fatalf("k has %s, j has %s", k, j)
	}
	// The cause is still there.
	f.retryAll()
	testkit.Eventually(t, patience, func() error {
		if got := f.scalar(`SELECT string_agg(attempts::text || state, ' ' ORDER BY commit_lsn) FROM postrider.parked`); got != "2parked 0parked 0parked" {
			return fmt.Errorf("parked: %s", got)
		}
		return nil
	})
	f.alterTopic("order", "max.message.bytes", "100000")
	f.retryAll()
	f.awaitParked("too_large:published held:published held:published")
	f.insert("order", "k", "5")
	records = f.awaitRecords(f.topic("order"), 9)
	if k := ofKey(records, "k"); k != "1 "+bigPayload(2)+" 3 4 5" {
		t.Fatalf("k has %s", k)
	}
	run.mustStop()
	if n := len(f.broker.ReadAll(t, f.topic("order"))); n != 9 {
		t.Errorf("%d records", n)
	}
}
