package replay

import (
	"encoding/json"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/reissue"
)

// rateOf is the rate of a run.
func rateOf(task reissue.Task, perSecond *float64) (float64, error) {
	if perSecond != nil {
		return *perSecond, nil
	}
	var req Request
	if err := json.Unmarshal(task.Params, &req); err != nil {
		return 0, &operr.Error{Class: operr.Internal, Op: "read what was asked for", Err: err}
	}
	return req.PerSecond, nil
}
