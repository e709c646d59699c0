package e2e

import (
	"errors"
	"fmt"
	"testing"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/testkit"
)

// TestShowKnowsWhatWaits: during an outage nothing moves, and what people look at then
// is "checkpoint show": it has the age of the oldest event that waits.
func TestShowKnowsWhatWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testkit.Postgres(t), testkit.Kafka(t))
	f.createTopic("order", 1, nil)
	network := f.kafkaProxy()
	r := f.start()
	f.insert("order", "k", "0")
	f.awaitConfirmed(f.walEnd())
	network.Refuse(true)
	network.Cut()
	f.insert("order", "k", "1")
	conn := f.db.Conn(t)
	waits := func() (bool, error) {
		status, err := checkpoint.ReadStatus(t.Context(), conn, f.cfg.Publisher, f.db.Slot)
		return status.OldestUnconfirmed != nil, err
	}
	testkit.Eventually(t, patience, func() error {
		if shown, err := waits(); err != nil || !shown {
			return fmt.Errorf("nothing is shown to wait (%w)", err)
		}
		return nil
	})
	network.Refuse(false)
	testkit.Eventually(t, patience, func() error {
		shown, err := waits()
		if err == nil && shown {
			err = errors.New("the event is still shown to wait")
		}
		return err
	})
	r.mustStop()
}
