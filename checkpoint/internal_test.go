package checkpoint

import (
	"testing"

	"github.com/postrider/postrider/event"
)

// At a page's border the insert position lies behind the next page's header; on a
// quiet server the stream reports the border for ever.
func TestRecordEnd(t *testing.T) {
	t.Parallel()
	const block, segment = 8192, 16 << 20
	for insert, want := range map[event.LSN]event.LSN{
		0x1000100:             0x1000100,
		segment + 40:          segment, // long header at a segment's start
		segment + 24:          segment + 24,
		segment + block + 24:  segment + block,
		segment + block + 40:  segment + block + 40,
		segment + block + 48:  segment + block + 48,
		segment + 2*block:     segment + 2*block,
		7*segment + 9*block:   7*segment + 9*block,
		1<<40 + 40:            1 << 40,
		1<<40 + 3*block + 24:  1<<40 + 3*block,
		1<<40 + 3*block + 100: 1<<40 + 3*block + 100,
	} {
		if got := recordEnd(insert, block, segment); got != want {
			t.Errorf("%s: %s, want %s", insert, got, want)
		}
	}
}
