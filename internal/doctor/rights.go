package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/createtopics"
)

// Operations as brokers number them.
const (
	opWrite           = 4
	opDescribe        = 8
	opDescribeConfigs = 10
)

// checkKafkaRights asks the brokers' authorizer, without publishing: for a producer id,
// and for the operations that this user may do on each topic. What it cannot know is what
// a proxy between us adds, and what a quota will cost.
func checkKafkaRights(ctx context.Context, e *exam) (found []answer) {
	topics, err := e.topics(ctx)
	if err != nil && existing(topics) == 0 && !isNoTopics(err) {
		return unanswered(err)
	}
	if err := e.kafka.probeProducerID(ctx); err != nil {
		found = append(found, problem(err)...)
	}
	user := userText(e)
	silent, missing := 0, []string{}
	for _, name := range slices.Sorted(maps.Keys(topics)) {
		t := topics[name]
		switch {
		case t.code == kafka.TopicAuthorizationFailed:
			found = append(found, fail(aclFix(e, name, "--operation Write --operation Describe --operation DescribeConfigs"), "%s may not even see topic %s", user, name)...)
		case t.code == kafka.UnknownTopicOrPartition:
			missing = append(missing, name)
		case t.code != 0:
		case t.allowed < 0:
			silent++
		default:
			found = append(found, topicRights(e, t)...)
		}
	}
	found = append(found, e.createRights(ctx, missing)...)
	switch {
	case len(found) > 0:
		return found
	case isNoTopics(err):
		return ok("%s may produce; which topics is not known: %s", user, err)
	case existing(topics) == 0:
		return ok("%s may produce; none of the topics exists (see topics)", user)
	case silent > 0:
		return ok("%s may produce; the broker does not say which operations it allows on topics (Kafka 2.3 and later do)", user)
	}
	return ok("%s may write to %s", user, plural(existing(topics), "topic", "topics"))
}

func isNoTopics(err error) bool { return err == errNoTopics } //nolint:errorlint // it is never wrapped

func topicRights(e *exam, t *topic) (found []answer) {
	may := func(operation int) bool { return t.allowed&(1<<operation) != 0 }
	if !may(opWrite) {
		found = append(found, fail(aclFix(e, t.name, "--operation Write"), "%s may not write to topic %s: its events wait for kafka.authorization_grace, then the relay ends", userText(e), t.name)...)
	}
	if !may(opDescribe) {
		found = append(found, fail(aclFix(e, t.name, "--operation Describe"), "%s may not describe topic %s", userText(e), t.name)...)
	}
	if !may(opDescribeConfigs) {
		found = append(found, warn(aclFix(e, t.name, "--operation DescribeConfigs"),
			"%s may not read the settings of topic %s: batches go by Kafka's default of max.message.bytes, and events that a higher one would take are found by trial", userText(e), t.name)...)
	}
	return found
}

// createRights asks the controller to validate what would be asked of it, without doing it.
func (e *exam) createRights(ctx context.Context, missing []string) (found []answer) {
	spec := e.cfg.Kafka.CreateTopics
	if spec == nil || len(missing) == 0 {
		return nil
	}
	req := &createtopics.Request{TimeoutMs: int32(e.cfg.Timeout.Milliseconds()), ValidateOnly: true}
	var configs []createtopics.RequestConfig
	for name, value := range spec.Configs {
		configs = append(configs, createtopics.RequestConfig{Name: name, Value: value})
	}
	for _, name := range missing {
		req.Topics = append(req.Topics, createtopics.RequestTopic{
			Name: name, NumPartitions: spec.Partitions, ReplicationFactor: spec.ReplicationFactor, Configs: configs,
		})
	}
	msg, err := e.kafka.askController(ctx, req)
	if err != nil {
		return unanswered(err)
	}
	for _, r := range msg.(*createtopics.Response).Topics {
		switch code := kafka.Error(r.ErrorCode); code {
		case 0, kafka.TopicAlreadyExists:
		case kafka.TopicAuthorizationFailed, kafka.ClusterAuthorizationFailed:
			found = append(found, fail(aclFix(e, r.Name, "--operation Create"), "topic %s does not exist, and %s may not create it", r.Name, userText(e))...)
		default:
			found = append(found, fail("correct kafka.topics.create", "topic %s does not exist, and could not be created: %s %s", r.Name, code.Title(), r.ErrorMessage)...)
		}
	}
	return found
}

func userText(e *exam) string {
	if s := e.cfg.Kafka.SASL; s != nil {
		return fmt.Sprintf("user %q", s.Username)
	}
	return "the user"
}

// aclFix is the command that grants something on a topic.
func aclFix(e *exam, topic, operations string) string {
	principal := "<principal>"
	if s := e.cfg.Kafka.SASL; s != nil {
		principal = s.Username
	}
	return fmt.Sprintf("kafka-acls.sh --bootstrap-server %s --add --allow-principal User:%s %s --topic %s", e.cfg.Kafka.Brokers[0], principal, operations, topic)
}
