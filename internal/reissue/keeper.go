package reissue

import (
	"context"
	"errors"
	"sync"
	"time"
)

// saveTimeout bounds one Save.
const saveTimeout = 30 * time.Second

// keeper saves the prefix from a goroutine of its own.
type keeper struct {
	r    *run
	quit chan struct{}
	done sync.WaitGroup
	err  error // of the last Save
}

func startKeeper(r *run) *keeper {
	k := &keeper{r: r, quit: make(chan struct{})}
	k.done.Go(k.loop)
	return k
}

func (k *keeper) loop() {
	tick := time.NewTicker(k.r.cfg.SaveEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-k.r.window.full:
			// The prefix may stand still, at a topic that does not exist: no turn without a pause.
			if !k.pause() {
				return
			}
		case <-k.quit:
			return
		}
		if k.save(false); k.err != nil {
			k.r.stop(k.err)
			return
		}
	}
}

// fullPause lets more events be resolved before they are saved together.
const fullPause = 10 * time.Millisecond

func (k *keeper) pause() bool {
	select {
	case <-time.After(fullPause):
		return true
	case <-k.quit:
		return false
	}
}

// save stores what has changed. complete says that the source had no more: then all
// numbers up to Total are done.
func (k *keeper) save(complete bool) {
	s, upTo, changed := k.r.window.take()
	if complete && s.Done < k.r.cfg.Total {
		s.Done, changed = k.r.cfg.Total, true
	}
	if changed {
		s.Withheld = k.r.held.fresh(s.Done)
		ctx, cancel := context.WithTimeoutCause(context.Background(), saveTimeout, errors.New("the progress could not be saved in time"))
		defer cancel()
		if k.err = k.r.cfg.Save(ctx, s); k.err != nil {
			return
		}
		k.r.held.saved(s.Done)
		k.r.window.keep(s, upTo)
	}
	k.r.cfg.Progress(k.r.progress())
}

// finish saves a last time, unless saving failed before.
func (k *keeper) finish(complete bool) error {
	close(k.quit)
	k.done.Wait()
	if k.err == nil {
		k.save(complete)
	}
	return k.err
}
