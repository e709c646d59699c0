package sizing

import (
	"context"
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/relay"
)

// drained is what publishing the backlog took.
type drained struct {
	took time.Duration
	cpu  time.Duration
	// machine is the share of all cores of this machine that was busy; 0: not known.
	machine float64
	peakRSS int64
	batches int64
	// forBrokers is the share of the time in which reading had to wait, or was done
	// already, and acknowledgements were missing.
	forBrokers float64
}

// drain watches the pipeline publish the backlog, which ends at end in the log. The
// clock runs from the stream's beginning to the last acknowledgement.
func (p *pipeline) drain(ctx context.Context, rows int, end event.LSN, told func(rows int)) (drained, error) {
	if err := p.await(ctx, func(s relay.Status) bool { return s.Ready }); err != nil {
		return drained{}, err
	}
	began, before := time.Now(), readUsage()
	last, waited := began, time.Duration(0)
	var s relay.Status
	err := p.await(ctx, func(now relay.Status) bool {
		at := time.Now()
		if s = now; waitsForBrokers(s, end) {
			waited += at.Sub(last)
		}
		last = at
		told(int(s.Published))
		return s.Published >= uint64(rows)
	})
	if err != nil {
		return drained{}, err
	}
	took := time.Since(began)
	if s.LastAcknowledged != nil {
		took = s.LastAcknowledged.Sub(began)
	}
	d := drained{took: took, peakRSS: peakRSS(), batches: s.Publishing.Batches, forBrokers: min(1, waited.Seconds()/took.Seconds())}
	d.cpu, d.machine = readUsage().since(before)
	return d, nil
}

// waitsForBrokers says that no more can be read, for want of room or of rows, before
// something is acknowledged.
func waitsForBrokers(s relay.Status, end event.LSN) bool {
	full := s.Publishing.WindowBytes >= s.Publishing.WindowLimitBytes*9/10
	return s.Unconfirmed > 0 && (full || s.HandedOn >= end)
}
