package main

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/reconcile"
	"github.com/postrider/postrider/internal/reissue"
	"github.com/postrider/postrider/internal/replay"
)

// momentFlag reads a time, or how long ago; nil where it is not given.
func momentFlag(name, text string, now time.Time) (*time.Time, error) {
	if text == "" {
		return nil, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago > 0 {
		at := now.Add(-ago).UTC()
		return &at, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return nil, fmt.Errorf("--%s: %q is neither a time such as 2026-05-03T10:00:00Z nor a duration such as 90m", name, text)
	}
	return &at, nil
}

// plan plans a replay of what is to be repaired. It does not begin: what it publishes is to be looked at before.
func (o *reconcileOptions) plan(ctx context.Context, cfg *config.Config, repair []reconcile.Ref) (plan *repairPlan, err error) {
	ids := make([]string, len(repair))
	for i, ref := range repair {
		ids[i] = ref.EventID
	}
	err = withReplayer(ctx, cfg, func(r *replay.Replayer, _ *reissue.Desk) error {
		task, _, err := r.Plan(ctx, replay.Request{EventIDs: ids, PerSecond: defaultReplayRate}, o.reason)
		if err == nil {
			plan = &repairPlan{
				Task: task.ID, Events: task.Total, NeedsApproval: task.Detail.NeedsApproval,
				Command: fmt.Sprintf("postrider replay --resume %d", task.ID),
			}
		}
		return err
	})
	return plan, err
}
