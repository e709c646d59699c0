package relay

import (
	"testing"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/parking"
)

// case C20: a position that is known is so until the stream has passed it, also where a
// link ended at it, and stands for the event that has the row's id and for no other.
func TestSeenIsTheRowsOwnEvent(t *testing.T) {
	t.Parallel()
	at := func(commit event.LSN, index uint64) event.Position {
		return event.Position{Commit: commit, Index: index}
	}
	p := &parkState{known: []parking.Known{
		parking.NewKnown(at(8, 1), []byte("a")), parking.NewKnown(at(8, 2), nil), parking.NewKnown(at(16, 0), []byte("c")), parking.NewKnown(at(24, 0), []byte("\xff")),
	}}
	for i, c := range []struct {
		at   event.Position
		id   string
		want bool
	}{
		{at(8, 0), "a", false},
		{at(8, 1), "a", true},
		{at(8, 1), "a", true},
		{at(8, 1), "", true},
		{at(8, 2), "any", true},
		{at(8, 3), "c", false},
		{at(16, 0), "d", false},
		{at(16, 0), "c", true},
		{event.Position{Commit: 24, End: 32}, "\uFFFD", true},
		{at(32, 0), "e", false},
	} {
		if got := p.seen(c.at, []byte(c.id)); got != c.want {
			t.Errorf("%d: %s %q is seen: %t", i, c.at, c.id, got)
		}
	}
	if p.known != nil {
		t.Errorf("%d are known still", len(p.known))
	}
}
