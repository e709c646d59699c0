package main

import (
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/reissue"
)

// Where nobody draws, a line comes now and then, and one at the end.
func TestTaskBarWithoutATerminal(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	bar := newTaskBar(&out, "backfill")
	at := reissue.Progress{Total: 10, Elapsed: 2 * time.Second}
	for at.Done = range 11 {
		bar.show(at)
	}
	at.Done = 10
	bar.show(at)
	bar.close()
	if out.String() != "backfill: 10 of 10 events in 2s\n" {
		t.Errorf("it said:\n%s", out.String())
	}
}
