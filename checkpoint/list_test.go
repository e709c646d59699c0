package checkpoint_test

import (
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/checkpoint"
)

// List has every publisher, with or without its slot; History is filtered, and in order.
func TestListAndHistory(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.left(t)
	s.exec(t, `INSERT INTO postrider.checkpoint (publisher, slot, system_id, timeline, confirmed_lsn, paused_at) VALUES ('billing', 'no_such_slot', '1', 1, '0/10', now());
		INSERT INTO postrider.parked (publisher, slot, system_id, timeline, commit_lsn, event_index, reason, state) VALUES
		('orders', 's', '1', 1, '0/1', 0, 'r', 'parked'), ('orders', 's', '1', 1, '0/1', 1, 'r', 'published')`)
	list, err := checkpoint.List(t.Context(), s.conn)
	if err != nil || len(list.Publishers) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	billing, orders := list.Publishers[0], list.Publishers[1]
	if billing.Publisher != "billing" || billing.SlotExists || billing.PausedAt == nil || orders.Publisher != "orders" || !orders.SlotExists || orders.Parked != 1 || orders.PausedAt != nil {
		t.Errorf("%+v", list)
	}

	s.exec(t, `INSERT INTO postrider.audit (at, publisher, actor, action) VALUES
		(now() - interval '3 days', 'orders', 'alice', 'parked.retry'), (now() - interval '2 days', 'orders', 'bob', 'parked.discard'),
		(now() - interval '1 day', 'orders', 'alice', 'advance'), (now(), 'billing', 'alice', 'drop')`)
	for name, tt := range map[string]struct {
		filter checkpoint.HistoryFilter
		want   string
	}{
		"publisher": {checkpoint.HistoryFilter{Publisher: "billing"}, "drop"},
		"group":     {checkpoint.HistoryFilter{Actions: []string{"parked."}}, "parked.retry parked.discard"},
		"one":       {checkpoint.HistoryFilter{Actions: []string{"parked.retry", "adv"}}, "parked.retry"},
		"actor":     {checkpoint.HistoryFilter{Actor: "lic"}, "parked.retry advance drop"},
		"since":     {checkpoint.HistoryFilter{Actor: "alice", Since: time.Now().Add(-36 * time.Hour)}, "advance drop"},
		"until":     {checkpoint.HistoryFilter{Until: time.Now().Add(-36 * time.Hour)}, "parked.retry parked.discard"},
		"latest":    {checkpoint.HistoryFilter{Actor: "alice", Most: 2}, "advance drop"},
	} {
		var got []string
		err := checkpoint.History(t.Context(), s.conn, tt.filter, func(e checkpoint.Entry) error {
			got = append(got, e.Action)
			return nil
		})
		if err != nil || strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %v (%v), want %s", name, got, err, tt.want)
		}
	}
}
