package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/describeconfigs"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"github.com/postrider/postrider/router"
)

// topic is what the cluster says of one.
type topic struct {
	name string
	code kafka.Error // of metadata
	// allowed are the operations that the user may do, by KIP-430; -1 where the broker does not say.
	allowed                       int32
	partitions, leaderless, under int
	replicas                      int // of the partition that has the fewest
	configs                       map[string]string
	unreadable                    kafka.Error // why configs are not known
}

// config gives a setting as a number, and false where it is not known.
func (t *topic) config(name string) (int64, bool) {
	n, err := strconv.ParseInt(t.configs[name], 10, 64)
	return n, err == nil
}

// topicNames are those that are known: of routes without a field, and of the rows that
// were looked at. The error says why none were.
func (e *exam) topicNames(ctx context.Context) ([]string, error) {
	rt, err := router.New(e.cfg.Router)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, name := range rt.StaticTopics() {
		names[name] = true
	}
	s, err := e.readSample(ctx)
	if err == nil {
		for _, name := range s.names() {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names)), err
}

// topics describes those that are known.
func (e *exam) topics(ctx context.Context) (map[string]*topic, error) {
	if _, err := e.kafka.ask(ctx, &metadata.Request{TopicNames: []string{}}); err != nil {
		return nil, err
	}
	return e.kafka.described.get(func() (map[string]*topic, error) {
		names, sampling := e.topicNames(ctx)
		switch {
		case len(names) == 0 && sampling != nil:
			return nil, sampleNeeded(sampling)
		case len(names) == 0:
			return nil, errNoTopics
		}
		all, err := e.kafka.describeTopics(ctx, names)
		if err == nil {
			err = e.kafka.readConfigs(ctx, all)
		}
		return all, err
	})
}

// errNoTopics: nothing is wrong with that, and nothing can be asked.
var errNoTopics = errors.New("the topics' names come from rows, and the tables hold none")

// noTopics answers for checks of topics.
func noTopics(err error) []answer {
	if errors.Is(err, errNoTopics) {
		return skip("%s", err)
	}
	return unanswered(err)
}

func (k *cluster) describeTopics(ctx context.Context, names []string) (map[string]*topic, error) {
	msg, err := k.ask(ctx, &metadata.Request{TopicNames: names, IncludeTopicAuthorizedOperations: true})
	if err != nil {
		return nil, err
	}
	all := map[string]*topic{}
	for i := range msg.(*metadata.Response).Topics {
		rt := &msg.(*metadata.Response).Topics[i]
		t := &topic{name: rt.Name, code: kafka.Error(rt.ErrorCode), allowed: rt.TopicAuthorizedOperations, partitions: len(rt.Partitions)}
		// 0 is what a request has that is too old to ask, the lowest number what an answer
		// has that was not asked.
		if t.allowed <= 0 {
			t.allowed = -1
		}
		for j := range rt.Partitions {
			p := &rt.Partitions[j]
			if p.LeaderID < 0 {
				t.leaderless++
			}
			if len(p.IsrNodes) < len(p.ReplicaNodes) {
				t.under++
			}
			if n := len(p.ReplicaNodes); j == 0 || n < t.replicas {
				t.replicas = n
			}
		}
		all[rt.Name] = t
	}
	return all, nil
}

// The settings of a topic that checks look at.
const (
	cfgMaxMessage  = "max.message.bytes"
	cfgMinISR      = "min.insync.replicas"
	cfgRetention   = "retention.ms"
	cfgRetainBytes = "retention.bytes"
	cfgCleanup     = "cleanup.policy"
	cfgUnclean     = "unclean.leader.election.enable"
	cfgStampAfter  = "message.timestamp.after.max.ms"
	cfgStampType   = "message.timestamp.type"
)

const resourceTopic = 2

func (k *cluster) readConfigs(ctx context.Context, topics map[string]*topic) error {
	req := &describeconfigs.Request{}
	for _, t := range topics {
		if t.code == 0 {
			req.Resources = append(req.Resources, describeconfigs.RequestResource{
				ResourceType: resourceTopic, ResourceName: t.name,
				ConfigNames: []string{cfgMaxMessage, cfgMinISR, cfgRetention, cfgRetainBytes, cfgCleanup, cfgUnclean, cfgStampAfter, cfgStampType},
			})
		}
	}
	if len(req.Resources) == 0 {
		return nil
	}
	msg, err := k.ask(ctx, req)
	if err != nil {
		return err
	}
	for _, r := range msg.(*describeconfigs.Response).Resources {
		t := topics[r.ResourceName]
		if t == nil {
			continue
		}
		t.unreadable = kafka.Error(r.ErrorCode)
		t.configs = map[string]string{}
		for _, c := range r.ConfigEntries {
			t.configs[c.ConfigName] = c.ConfigValue
		}
	}
	return nil
}

// each asks about every topic that exists, in the order of their names.
func each(topics map[string]*topic, about func(*topic) []answer) (found []answer) {
	for _, name := range slices.Sorted(maps.Keys(topics)) {
		if t := topics[name]; t.code == 0 || t.code == kafka.LeaderNotAvailable {
			found = append(found, about(t)...)
		}
	}
	return found
}

// configured is each for what goes by the topics' settings; a user who may not read them
// is told so once.
func configured(topics map[string]*topic, about func(*topic) []answer) (found []answer) {
	var hidden []string
	found = each(topics, func(t *topic) []answer {
		if t.unreadable != 0 {
			hidden = append(hidden, t.name)
			return nil
		}
		return about(t)
	})
	if len(hidden) > 0 {
		found = append(found, skip("the user may not read the settings of %s (DESCRIBE_CONFIGS; see kafka_rights)", list(hidden, 3))...)
	}
	return found
}

// existing counts the topics that can be asked about.
func existing(topics map[string]*topic) (n int) {
	for _, t := range topics {
		if t.code == 0 {
			n++
		}
	}
	return n
}

func checkTopics(ctx context.Context, e *exam) (found []answer) {
	topics, err := e.topics(ctx)
	if err != nil {
		return noTopics(err)
	}
	var awaited []string
	for _, name := range slices.Sorted(maps.Keys(topics)) {
		t := topics[name]
		switch {
		case t.code == kafka.UnknownTopicOrPartition && e.cfg.Kafka.CreateTopics != nil:
			awaited = append(awaited, name)
		case t.code == kafka.UnknownTopicOrPartition:
			found = append(found, fail(fmt.Sprintf("kafka-topics.sh --create --topic %s --partitions <n> --bootstrap-server %s; or let Postrider do it: kafka.topics.create", name, e.cfg.Kafka.Brokers[0]),
				"topic %s does not exist: its events wait, and hold back WAL", name)...)
		case t.code == kafka.InvalidTopic:
			found = append(found, fail("correct the route that gives this name", "topic %s: Kafka allows no such name", name)...)
		}
	}
	found = append(found, each(topics, func(t *topic) []answer { return e.aliveTopic(ctx, t) })...)
	if len(awaited) > 0 {
		found = append(found, e.creatable(ctx)...)
	}
	text := plural(existing(topics), "topic", "topics") + partitionsText(topics)
	if len(awaited) > 0 {
		text += fmt.Sprintf("; %s will be created", list(awaited, 3))
	}
	return orOK(found, "%s", text)
}

// creatable: no cluster makes a topic of more replicas than it has brokers.
func (e *exam) creatable(ctx context.Context) []answer {
	r, err := e.kafka.reach(ctx)
	if err != nil {
		return nil // brokers says so
	}
	if factor := int(e.cfg.Kafka.CreateTopics.ReplicationFactor); factor > len(r.brokers) {
		return fail(fmt.Sprintf("kafka.topics.create.replication_factor of at most %d, or more brokers", len(r.brokers)),
			"topics cannot be created: kafka.topics.create wants %s, the cluster has %s", plural(factor, "replica", "replicas"), plural(len(r.brokers), "broker", "brokers"))
	}
	return nil
}

// partitionsText is the range of their counts.
func partitionsText(topics map[string]*topic) string {
	least, most := 0, 0
	for _, t := range topics {
		if t.code != 0 {
			continue
		}
		if least == 0 || t.partitions < least {
			least = t.partitions
		}
		most = max(most, t.partitions)
	}
	switch {
	case most == 0:
		return ""
	case least == most:
		return " of " + plural(most, "partition", "partitions")
	default:
		return fmt.Sprintf(" of %d to %d partitions", least, most)
	}
}

// aliveTopic asks about leaders and replicas, and about the partitions that rows name.
func (e *exam) aliveTopic(ctx context.Context, t *topic) (found []answer) {
	const fix = "start the brokers that hold its replicas (kafka-topics.sh --describe --topic %s)"
	if t.leaderless > 0 {
		found = append(found, fail(fmt.Sprintf(fix, t.name), "topic %s: %d of %d partitions have no leader, and their events wait", t.name, t.leaderless, t.partitions)...)
	}
	if t.under > 0 && t.leaderless == 0 {
		found = append(found, warn(fmt.Sprintf(fix, t.name), "topic %s: %d of %d partitions lack a replica that is in sync", t.name, t.under, t.partitions)...)
	}
	if s, err := e.readSample(ctx); err == nil && s.topics[t.name] != nil && int(s.topics[t.name].partition) >= t.partitions {
		found = append(found, fail("give the topic as many partitions as the rows name, or leave mapping.partition out",
			"topic %s has %d partitions, and rows name partition %d: they are refused", t.name, t.partitions, s.topics[t.name].partition)...)
	}
	return found
}

func checkDurability(ctx context.Context, e *exam) []answer {
	topics, err := e.topics(ctx)
	if err != nil {
		return noTopics(err)
	}
	r, err := e.kafka.reach(ctx)
	if err != nil {
		return unanswered(errNoKafka)
	}
	found := configured(topics, func(t *topic) []answer { return durable(t, len(r.brokers)) })
	if len(found) == 0 && existing(topics) == 0 {
		return skip("none of the topics exists (see topics)")
	}
	if len(r.brokers) == 1 {
		return orOK(found, "one broker: what is acknowledged stands on one disk")
	}
	return orOK(found, "acknowledged events are on at least two brokers")
}

func durable(t *topic, brokers int) (found []answer) {
	minISR, _ := t.config(cfgMinISR)
	alter := func(config string) string { return alterTopic(t.name, config) }
	switch {
	case int(minISR) > t.replicas:
		return fail(alter(fmt.Sprintf("min.insync.replicas=%d", max(1, t.replicas-1))),
			"topic %s: min.insync.replicas is %d, and it has %s: nothing is ever accepted", t.name, minISR, plural(t.replicas, "replica", "replicas"))
	case brokers > 1 && t.replicas == 1:
		found = warn("kafka-reassign-partitions.sh, to a replication factor of 3",
			"topic %s has one replica: where its broker's disk dies, acknowledged events are gone", t.name)
	case brokers > 1 && minISR == 1:
		found = warn(alter("min.insync.replicas=2"),
			"topic %s: min.insync.replicas is 1: an event may be acknowledged by a single broker, and be gone with it", t.name)
	}
	if t.configs[cfgUnclean] == "true" {
		found = append(found, warn(alter("unclean.leader.election.enable=false"),
			"topic %s: unclean.leader.election.enable lets a replica lead that lacks acknowledged events", t.name)...)
	}
	return found
}

func checkRetention(ctx context.Context, e *exam) []answer {
	topics, err := e.topics(ctx)
	if err != nil {
		return noTopics(err)
	}
	longest := e.cfg.LongestOutage
	found := configured(topics, func(t *topic) []answer {
		keeps, known := t.config(cfgRetention)
		if !known || keeps < 0 || !strings.Contains(t.configs[cfgCleanup], "delete") {
			return nil
		}
		kept := time.Duration(keeps) * time.Millisecond
		if keeps > int64(longest/time.Millisecond) || kept >= longest {
			return nil
		}
		return warn(alterTopic(t.name, fmt.Sprintf("retention.ms=%d", longest.Milliseconds()))+"; or say what outage is to be survived: --longest-outage",
			"topic %s keeps events for %s, less than the longest outage of %s: a consumer that is away misses some, and recover cannot tell by the topic what was published", t.name, words(kept), words(longest))
	})
	if len(found) == 0 && existing(topics) == 0 {
		return skip("none of the topics exists (see topics)")
	}
	return orOK(found, "at least %s", words(longest))
}
