package replication

import "testing"

// rule 6: the snapshot at a slot's birth can be stored, whatever the slot exported.
func TestSnapshotsAreInOrder(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"1681:1679:":     "1681:1681:",
		"736:736:":       "736:736:",
		"700:703:701":    "700:703:701",
		"700:703:":       "700:703:",
		"9:4294967300:9": "9:4294967300:9",
		"":               "",
	} {
		if got := inOrder(given); got != want {
			t.Errorf("%q becomes %q, want %q", given, got, want)
		}
	}
}
