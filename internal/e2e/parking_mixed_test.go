package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/router"
)

// mixture is good events of many keys with poison of five kinds among them.
type mixture struct {
	rows []string
	good int
	// held are good events that stand behind a poisoned one of their key; before is
	// the number of good ones before the first poison.
	held, before int
}

// mix makes n good events, and ten that cannot go: two each of a NULL payload, one that
// is too large, a NULL key, an empty key and an illegal topic.
func mix(n int) mixture {
	const keys = 20
	var m mixture
	row := func(kind, key, payload string) {
		m.rows = append(m.rows, fmt.Sprintf("(%s, %s, %s)", kind, key, payload))
	}
	poisoned := map[int]bool{}
	for i := range n {
		if at := i % (n / 11); at == n/11-1 && i/(n/11) < 10 {
			p := i / (n / 11)
			key := literal(fmt.Sprintf("k%d", p))
			if p == 0 {
				m.before = m.good
			}
			switch p % 5 {
			case 0:
				row("'order'", key, "NULL")
				poisoned[p] = true
			case 1:
				row("'order'", key, literal(bigPayload(i)))
				poisoned[p] = true
			case 2:
				row("'order'", "NULL", "'1'")
			case 3:
				row("'order'", "''", "'1'")
			case 4:
				row("'bad topic'", key, "'1'")
			}
		}
		key := i % keys
		if poisoned[key] {
			m.held++
		}
		m.good++
		row("'order'", literal(fmt.Sprintf("k%d", key)), literal(fmt.Sprint(i)))
	}
	return m
}

// commit inserts the rows in order, several to a transaction.
func (m *mixture) commit(f *fixture) {
	f.t.Helper()
	for rows := m.rows; len(rows) > 0; {
		n := min(7, len(rows))
		f.db.Exec(f.t, "INSERT INTO outbox(aggregate_type, aggregate_id, payload) VALUES "+strings.Join(rows[:n], ", "))
		rows = rows[n:]
	}
}

func (f *fixture) awaitCount(sql, want string) {
	f.t.Helper()
	testkit.Eventually(f.t, patience, func() error {
		if got := f.scalar(sql); got != want {
			return fmt.Errorf("%s: %s, want %s", sql, got, want)
		}
		return nil
	})
}

const parkedByReason = `SELECT coalesce(string_agg(reason || ' ' || n, ', ' ORDER BY reason), '')
	FROM (SELECT reason, count(*) AS n FROM postrider.parked WHERE state IN ('parked', 'retry', 'publishing') GROUP BY reason) r`

// tellParked reports all rows of the parked store to the oracle.
func (f *fixture) tellParked(w *testkit.Witness) {
	f.t.Helper()
	for id := range strings.FieldsSeq(f.scalar(`SELECT coalesce(string_agg(p.event_id, ' '), '') FROM postrider.parked p WHERE unit IS NOT NULL`)) {
		w.Parked(id)
	}
	for id := range strings.FieldsSeq(f.scalar(`SELECT coalesce(string_agg(p.event_id, ' '), '') FROM postrider.parked p WHERE unit IS NULL`)) {
		w.ParkedAlone(id)
	}
}

const perReason = "empty_key 2, %sinvalid_topic 2, null_key 2, null_payload 2, too_large 2"

// cases C20, C18, trap 16, rules 14 and 20: ten poison events of five kinds between good
// ones. Each is parked once, the good ones are out in order, but for those behind a
// poisoned one of their key under park_aggregate. After a retry all keys are in order
// then; under park_event the poisoned ones are among themselves, behind the others.
func TestMixedPoison(t *testing.T) {
	t.Parallel()
	for _, policy := range []router.OnRefusal{router.OnRefusalParkAggregate, router.OnRefusalParkEvent} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
			f.onRefusal(policy)
			f.createTopic("order", 4, map[string]string{"max.message.bytes": "2000"})
			w := testkit.NewWitness(t, f.db, f.db.Publication, f.broker, []string{f.topic("order")}, f.expect)
			m := mix(pick(1100, 11000))
			run := f.start()
			m.commit(f)
			held, out := "", m.good
			if policy == router.OnRefusalParkAggregate {
				held, out = fmt.Sprintf("held %d, ", m.held), m.good-m.held
			}
			f.awaitConfirmed(f.walEnd())
			f.awaitCount(parkedByReason, fmt.Sprintf(perReason, held))
			if n := len(f.awaitRecords(f.topic("order"), out)); n != out {
				t.Fatalf("%d records before the retry, want %d", n, out)
			}
			testkit.EventuallyTrue(t, patience, "the gauges show it", func() bool {
				return run.metric(`postrider_parked_events{reason="too_large"}`) == 2 && run.metric("postrider_parked_oldest_seconds") > 0 &&
					run.metric("postrider_held_keys") == float64(strings.Count(held, "held")*4) &&
					run.metric("postrider_parked_ownerless_events") == float64(10+m.good-out)
			})
			run.mustStop()
			f.alterTopic("order", "max.message.bytes", "100000")
			f.cfg.Router.Sources[0].Mapping.NullPayload = router.NullPayloadTombstone
			f.cfg.Router.Sources[0].Mapping.EmptyKey = router.EmptyKeyAllow
			run = f.start()
			f.retryAll()
			f.awaitCount(parkedByReason, "invalid_topic 2, null_key 2")
			testkit.EventuallyTrue(t, patience, "the gauges show it", func() bool {
				return run.metric("postrider_held_keys") == 0 && run.metric(`postrider_parked_events{reason="null_key"}`) == 2
			})
			run.mustStop()
			if n := len(f.broker.ReadAll(t, f.topic("order"))); n != m.good+6 {
				t.Errorf("%d records, want each of %d once", n, m.good+6)
			}
			f.tellParked(w)
			w.RequireKept(t)
		})
	}
}

// The same under halt: what is before the first poison is out and confirmed, and
// nothing is parked.
func TestMixedPoisonHalts(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 4, map[string]string{"max.message.bytes": "2000"})
	m := mix(pick(1100, 11000))
	m.commit(f)
	if err := f.start().wait(patience); operr.ClassOf(err) != operr.Halted {
		t.Fatalf("ended with %v", err)
	}
	if n := len(f.broker.ReadAll(t, f.topic("order"))); n != m.before {
		t.Errorf("%d records, want %d", n, m.before)
	}
	if got := f.parkedStates(); got != "" {
		t.Errorf("parked: %s", got)
	}
}
