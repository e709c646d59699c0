package reissue

import (
	"context"
	"math"

	"golang.org/x/time/rate"
)

// burstsPerSecond: a rate is kept over a twentieth of a second, so that a batch may
// still hold several events.
const burstsPerSecond = 20

// pace bounds the rate; the zero value does not.
type pace struct{ limit *rate.Limiter }

func newPace(perSecond float64) pace {
	if perSecond <= 0 || math.IsInf(perSecond, 1) {
		return pace{}
	}
	return pace{rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond/burstsPerSecond)))}
}

// wait waits for one event's turn; idle is called before it really has to.
func (p pace) wait(ctx context.Context, idle func()) error {
	if p.limit == nil || p.limit.Allow() {
		return nil
	}
	idle()
	if err := p.limit.Wait(ctx); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	return nil
}
