package demo

import (
	"context"
	"errors"
	"sync"
)

// crew are the goroutines of a run. The first that fails ends the run.
type crew struct {
	fail    context.CancelCauseFunc
	members sync.WaitGroup
}

// join starts a member. That the run was ended under it is no failure.
func (c *crew) join(work func() error) {
	c.members.Go(func() {
		if err := work(); err != nil && !errors.Is(err, context.Canceled) {
			c.fail(err)
		}
	})
}

// wait returns when all have ended.
func (c *crew) wait() { c.members.Wait() }

// shift is the part of a crew that can be sent home early.
type shift struct {
	stop    context.CancelFunc
	members sync.WaitGroup
}

// join starts a member of both.
func (s *shift) join(c *crew, work func() error) {
	s.members.Add(1)
	c.join(func() error {
		defer s.members.Done()
		return work()
	})
}

// end sends it home and waits; it may be called twice.
func (s *shift) end() {
	s.stop()
	s.members.Wait()
}
