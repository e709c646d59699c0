package topic

import (
	"context"
	"strings"

	"github.com/segmentio/kafka-go/protocol/describeconfigs"
)

const (
	resourceTopic = 2
	cleanupPolicy = "cleanup.policy"
)

// Compacted says that the topic keeps the last record of each key only. Where the user may
// not read the topic's settings, the answer is no.
func (r *Reader) Compacted(ctx context.Context, topic string) (bool, error) {
	msg, err := r.control.Ask(ctx, &describeconfigs.Request{Resources: []describeconfigs.RequestResource{{
		ResourceType: resourceTopic, ResourceName: topic, ConfigNames: []string{cleanupPolicy},
	}}})
	if err != nil {
		return false, readError("read the settings of", topic, err)
	}
	for _, res := range msg.(*describeconfigs.Response).Resources {
		for _, e := range res.ConfigEntries {
			if e.ConfigName == cleanupPolicy && strings.Contains(e.ConfigValue, "compact") {
				return true, nil
			}
		}
	}
	return false, nil
}
