package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/reconcile"
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

func (o *reconcileOptions) plan(context.Context, *config.Config, []reconcile.Ref) (*repairPlan, error) {
	return nil, &operr.Error{Class: operr.Config, Op: "plan", Subject: "the replay", Err: errors.New("this build has no replay")}
}
