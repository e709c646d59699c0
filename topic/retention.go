package topic

import (
	"context"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go/protocol/describeconfigs"
)

// Retention is for how long the topic keeps records at least: its retention.ms, where no
// retention.bytes may remove younger ones. known is false where it is not by time alone,
// or where the user may not read the topic's settings. Who deletes records by hand is
// under no such rule.
func (r *Reader) Retention(ctx context.Context, topic string) (keeps time.Duration, known bool, err error) {
	const byTime, bySize = "retention.ms", "retention.bytes"
	msg, err := r.control.Ask(ctx, &describeconfigs.Request{Resources: []describeconfigs.RequestResource{{
		ResourceType: resourceTopic, ResourceName: topic, ConfigNames: []string{byTime, bySize},
	}}})
	if err != nil {
		return 0, false, readError("read the settings of", topic, err)
	}
	found := map[string]int64{}
	for _, res := range msg.(*describeconfigs.Response).Resources {
		for _, e := range res.ConfigEntries {
			if n, err := strconv.ParseInt(e.ConfigValue, 10, 64); err == nil {
				found[e.ConfigName] = n
			}
		}
	}
	ms, ok := found[byTime]
	bytes, sized := found[bySize]
	if !ok || ms < 0 || !sized || bytes >= 0 {
		return 0, false, nil
	}
	return time.Duration(ms) * time.Millisecond, true, nil
}
