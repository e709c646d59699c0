package outbox

import (
	"reflect"
	"testing"
)

func TestIDsAreNumbers(t *testing.T) {
	t.Parallel()
	for _, n := range []int64{0, 1, 255, 500_000, 1<<48 - 1} {
		if got, ok := Number([]byte(ID(n))); !ok || got != n {
			t.Errorf("%s is %d, %v", ID(n), got, ok)
		}
	}
	for _, id := range []string{"", "1", "10000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-00000000000G", `"00000000-0000-4000-8000-000000000001"`} {
		if n, ok := Number([]byte(id)); ok {
			t.Errorf("%q was taken for %d", id, n)
		}
	}
}

func TestPartsBeginAtSlots(t *testing.T) {
	t.Parallel()
	s := Spec{Table: "outbox", Tails: []int{100, 40, 10}}
	want := []part{{"outbox_100", 1, 60}, {"outbox_40", 61, 90}, {"outbox_10", 91, 100}}
	if got := s.parts(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
