package main

import (
	"context"
	"fmt"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/reconcile"
	"github.com/postrider/postrider/internal/reissue"
	"github.com/postrider/postrider/internal/replay"
)

// plan makes a replay of what a copy makes good. Nothing is published yet.
func (o *reconcileOptions) plan(ctx context.Context, cfg *config.Config, refs []reconcile.Ref) (plan *repairPlan, err error) {
	request := replay.Request{PerSecond: defaultReplayRate}
	for _, ref := range refs {
		request.EventIDs = append(request.EventIDs, ref.EventID)
	}
	err = withReplayer(ctx, cfg, cfg.PublisherConfig(), func(r *replay.Replayer, _ *reissue.Desk) error {
		task, _, err := r.Plan(ctx, request, o.reason)
		if err != nil {
			return err
		}
		plan = &repairPlan{Task: task.ID, Events: task.Total, NeedsApproval: task.Detail.NeedsApproval, Command: fmt.Sprintf("postrider replay --resume %d", task.ID)}
		if plan.NeedsApproval {
			plan.Command = fmt.Sprintf("postrider replay approve %d (somebody else), then postrider replay --resume %d", task.ID, task.ID)
		}
		return nil
	})
	return plan, err
}
