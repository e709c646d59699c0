package doctor

import (
	"context"
	"fmt"
)

// batchOverhead is more than a batch of one record adds to key, value and headers.
const batchOverhead = 128

func checkMessageSize(ctx context.Context, e *exam) []answer {
	topics, err := e.topics(ctx)
	if err != nil {
		return noTopics(err)
	}
	s, err := e.readSample(ctx)
	if err != nil {
		return unanswered(sampleNeeded(err))
	}
	var smallest *topic
	least := int64(0)
	found := configured(topics, func(t *topic) []answer {
		limit, known := t.config(cfgMaxMessage)
		if !known {
			return nil
		}
		if smallest == nil || limit < least {
			smallest, least = t, limit
		}
		return e.tooSmall(t, limit, s.largestOf(t.name, len(topics) == 1))
	})
	switch {
	case len(found) > 0:
		return found
	case smallest == nil:
		return skip("none of the topics exists (see topics)")
	case s.rows == 0 && s.largest == 0:
		return ok("topics take %s; the tables hold no rows to compare", bytesText(least))
	case s.largest+batchOverhead > least:
		return warn(alterTopic(smallest.name, fmt.Sprintf("max.message.bytes=%d", 2*s.largest)),
			"a payload that was looked at has %s, and topic %s takes %s (max.message.bytes): where it is for that topic, it is refused as too_large%s",
			bytesText(s.largest), smallest.name, bytesText(least), e.unlessCompressed())
	}
	return ok("topics take %s, the largest payload that was looked at has %s", bytesText(least), bytesText(s.largest))
}

func (e *exam) tooSmall(t *topic, limit, largest int64) []answer {
	if largest+batchOverhead <= limit {
		return nil
	}
	return warn(alterTopic(t.name, fmt.Sprintf("max.message.bytes=%d", 2*largest)),
		"topic %s takes %s (max.message.bytes), and a row that was looked at makes %s: it is refused as too_large%s",
		t.name, bytesText(limit), bytesText(largest), e.unlessCompressed())
}

// largestOf is the largest message for a topic. Payloads that were measured only are
// of this topic where it is the only one.
func (s *sample) largestOf(name string, only bool) int64 {
	largest := int64(0)
	if t := s.topics[name]; t != nil {
		largest = int64(t.largest)
	}
	if only {
		largest = max(largest, s.largest)
	}
	return largest
}

func (e *exam) unlessCompressed() string {
	if e.cfg.Kafka.Compression == 0 {
		return ""
	}
	return ", unless it compresses well"
}

// alterTopic is the command that changes a topic's setting.
func alterTopic(name, config string) string {
	return fmt.Sprintf("kafka-configs.sh --alter --entity-type topics --entity-name %s --add-config %s", name, config)
}
