package outbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// What is planned is counted, listed in order and found.
func TestPlanCountItemsFind(t *testing.T) {
	t.Parallel()
	db := newDB(t, plainTable+`INSERT INTO outbox(id, kind, key, type, payload) SELECT 'e' || i, CASE i % 2 WHEN 0 THEN 'even' ELSE 'odd' END, 'k' || i % 3, 'X', to_jsonb(i) FROM generate_series(1, 9) i;
		INSERT INTO outbox(id, kind, key, type, payload) VALUES ('e10', 'bad topic', 'k', 'X', '1'), ('', 'even', 'k', 'X', '1')`)
	r := open(t, db, plainSource())
	counts, err := r.Count(t.Context(), Selection{})
	must(t, err)
	var groups []string
	for _, g := range counts.Groups {
		groups = append(groups, fmt.Sprintf("%s %s %s %d %s", g.Table, g.Topic, g.EventType, g.Events, g.Refused))
	}
	want := []string{"public.outbox outbox.event.bad topic X 1 invalid_topic", "public.outbox outbox.event.even X 4 ", "public.outbox outbox.event.odd X 5 "}
	if counts.Events != 10 || counts.WithoutID != 1 || !slices.Equal(groups, want) {
		t.Errorf("counts %+v", counts)
	}
	task, planned := plan(t, db, r, Selection{})
	if planned.Items != 10 || planned.WithoutID != 1 || planned.Shared != 0 || planned.Order != "time of commit, then transaction id" {
		t.Errorf("planned %+v", planned)
	}
	all := items(t, r, task, 0)
	if want := "1 e1, 2 e2, 3 e3, 4 e4, 5 e5, 6 e6, 7 e7, 8 e8, 9 e9, 10 refused e10 invalid_topic"; strings.Join(all, ", ") != want {
		t.Errorf("items %s", strings.Join(all, ", "))
	}
	db.Exec(t, "DELETE FROM outbox WHERE id = 'e8'")
	if all := items(t, r, task, 7); strings.Join(all, ", ") != "8 gone, 9 e9, 10 refused e10 invalid_topic" {
		t.Errorf("items behind 7: %v", all)
	}
	found, err := r.Find(t.Context(), "e4")
	must(t, err)
	if found == nil || found.Message.Topic != "outbox.event.even" || string(found.Message.Value) != "4" || found.Rows != 1 || found.XID == 0 || found.Partition != "public.outbox" {
		t.Errorf("found %+v", found)
	}
	if found, err := r.Find(t.Context(), "e8"); err != nil || found != nil {
		t.Errorf("found %+v, %v", found, err)
	}
}
