package parking_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/parking"
)

// copyNames are the ids of events whose copies are still to go to a topic, with their values.
func (s *server) copyNames(t *testing.T, topic string, most int, bytes int64) string {
	t.Helper()
	events, err := s.store().Copies(t.Context(), topic, most, bytes)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range events {
		if e.Message.DeadLetter != topic {
			t.Errorf("%s is for %q", e.Message.EventID, e.Message.DeadLetter)
		}
		all = append(all, fmt.Sprintf("%s=%s", e.Message.EventID, e.Message.Value))
	}
	return strings.Join(all, " ")
}

// Copies are given in the order of parking, each until it is noted, and of published
// events too; an erased one is not given, nor one whose topic is configured no more.
func TestCopies(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for n, topic := range []string{"dead", "dead", "", "dead", "other", "dead"} {
		e := parkedEvent("k", n, event.ReasonTooLarge)
		e.Message.DeadLetter = topic
		s.park(t, e)
	}
	if got := s.copyNames(t, "dead", 10, 100); got != "k-0=0 k-1=1 k-3=3 k-5=5" {
		t.Fatalf("copies %s", got)
	}
	if got := s.copyNames(t, "dead", 10, 2); got != "k-0=0 k-1=1" {
		t.Errorf("two bytes hold %s", got)
	}
	if got := s.copyNames(t, "dead", 10, 0); got != "k-0=0" {
		t.Errorf("no room holds %s", got)
	}
	if got := s.copyNames(t, "dead", 3, 100); got != "k-0=0 k-1=1 k-3=3" {
		t.Errorf("three are %s", got)
	}

	ids := s.ids(t)
	s.exec(t, "UPDATE postrider.parked SET state = 'publishing' WHERE id = ANY($1)", ids[:3])
	if err := s.store().Published(t.Context(), ids[:3]); err != nil {
		t.Fatal(err)
	}
	if got := s.text(t, "SELECT string_agg(coalesce(convert_from(value, 'UTF8'), '-'), ' ' ORDER BY id) FROM postrider.parked WHERE state = 'published'"); got != "0 1 -" {
		t.Errorf("published events keep %s", got)
	}
	s.exec(t, "UPDATE postrider.parked SET finished_at = now() - interval '2 hours', commit_lsn = '0/1' WHERE id = $1", ids[0])
	if n, err := s.store().Prune(t.Context(), hour); err != nil || n != 0 {
		t.Errorf("%d pruned before their copies were sent, error %v", n, err)
	}
	if err := s.store().Copied(t.Context(), ids[:1], []parking.LostCopy{{ID: ids[1], Error: "no\x00 room"}}); err != nil {
		t.Fatal(err)
	}
	if got := s.copyNames(t, "dead", 10, 100); got != "k-3=3 k-5=5" {
		t.Errorf("left are %s", got)
	}
	if got := s.text(t, "SELECT count(value)::text || ' ' || max(dead_letter_error) FROM postrider.parked WHERE dead_letter_at IS NOT NULL"); got != "0 no room" {
		t.Errorf("after the copies: %s", got)
	}
	if n, err := s.store().Prune(t.Context(), hour); err != nil || n != 1 {
		t.Errorf("%d pruned, error %v", n, err)
	}

	if _, err := s.desk().Erase(t.Context(), parking.Filter{IDs: ids[3:4]}, "asked for", false); err != nil {
		t.Fatal(err)
	}
	if got := s.copyNames(t, "dead", 10, 100); got != "k-5=5" {
		t.Errorf("after erasing: %s", got)
	}
	if n, err := s.store().KeepCopies(t.Context(), []string{"dead"}); err != nil || n != 1 || s.copyNames(t, "other", 10, 100) != "" {
		t.Errorf("%d given up, error %v", n, err)
	}
	if n, err := s.store().KeepCopies(t.Context(), nil); err != nil || n != 1 {
		t.Errorf("%d given up without any topic, error %v", n, err)
	}
	if got := s.text(t, "SELECT count(value) FROM postrider.parked WHERE state = 'parked'"); got != "2" {
		t.Errorf("%s parked events keep their value", got)
	}
}
