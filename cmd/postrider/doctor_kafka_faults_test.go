package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/postrider/postrider/internal/doctor"
	"github.com/postrider/postrider/internal/testkit"
)

// byTopic are the checks that look at topics.
var byTopic = []string{"topics", "min_insync_replicas", "retention", "message_size", "kafka_clock"}

// otherFaults change nothing in the database.
var otherFaults = map[string]fault{
	"PostgreSQL down": {
		plant: func(_ *testing.T, p *patient) { p.dsn = "postgres://x@127.0.0.1:1/x?sslmode=disable" },
		check: "postgres", state: doctor.Failed, says: "connection refused", fix: "check that PostgreSQL runs",
		also: postgresChecks(),
	},
	"broker down": {
		plant: func(_ *testing.T, p *patient) { p.brokers = `"127.0.0.1:1"` },
		check: "brokers", state: doctor.Failed, says: "connection refused", fix: "check that the address is right",
		also: append([]string{"kafka_tls", "kafka_rights"}, byTopic...),
	},
	"one broker down": {
		plant: func(_ *testing.T, p *patient) { p.brokers += `, "127.0.0.1:1"` },
		check: "brokers", state: doctor.Warning, says: "127.0.0.1:1", fix: "take it out of kafka.brokers",
	},
	"wrong password": {
		plant: func(_ *testing.T, p *patient) { p.password = "wrong" },
		check: "brokers", state: doctor.Failed, says: "SASL Authentication Failed", fix: "check the SASL mechanism, user name and password",
		also: append([]string{"kafka_tls", "kafka_rights"}, byTopic...),
	},
	"unknown authority": {
		plant: func(_ *testing.T, p *patient) { p.kafka = "tls: {}" },
		check: "brokers", state: doctor.Failed, says: "certificate signed by unknown authority", fix: "tls.ca",
		also: append([]string{"kafka_tls", "kafka_rights"}, byTopic...),
	},
	"plain text to a TLS port": {
		plant: func(_ *testing.T, p *patient) { p.kafka = "" },
		check: "brokers", state: doctor.Failed, says: "negotiate versions", fix: "wants TLS",
		also: append([]string{"kafka_tls", "kafka_rights"}, byTopic...),
	},
	"no WRITE": {
		plant: func(t *testing.T, p *patient) {
			p.topic = p.clinic.kafka.NewTopic(t, 3, nil)
			p.allow(t, p.topic, kadm.OpDescribe, kadm.OpDescribeConfigs)
		},
		check: "kafka_rights", state: doctor.Failed, says: `user "postrider" may not write to topic`, fix: "--operation Write --topic",
	},
	"no DESCRIBE_CONFIGS": {
		plant: func(t *testing.T, p *patient) {
			p.topic = p.clinic.kafka.NewTopic(t, 3, nil)
			p.allow(t, p.topic, kadm.OpWrite, kadm.OpDescribe)
		},
		check: "kafka_rights", state: doctor.Warning, says: "may not read the settings", fix: "--operation DescribeConfigs",
		also: byTopic,
	},
	"no rights at all": {
		plant: func(_ *testing.T, p *patient) { p.user = strangerUser },
		check: "kafka_rights", state: doctor.Failed, says: `user "stranger" may not even see topic`, fix: "kafka-acls.sh",
		also: byTopic,
	},
	"no topic": {
		plant: func(t *testing.T, p *patient) {
			p.topic = testkit.Unique(t)
			p.allow(t, p.topic, kadm.OpWrite, kadm.OpDescribe, kadm.OpDescribeConfigs)
		},
		check: "topics", state: doctor.Failed, says: "does not exist", fix: "kafka.topics.create",
		also: byTopic,
	},
	"topic that only rows know": {
		plant: func(t *testing.T, p *patient) {
			p.topic = testkit.Unique(t) + ".${aggregate_type}"
			p.grant(t, kadm.NewACLs().Topics(strings.Replace(p.topic, "${aggregate_type}", "Order", 1)).Allow("User:"+relayUser).Operations(kadm.OpWrite, kadm.OpDescribe))
		},
		check: "topics", state: doctor.Failed, says: ".Order does not exist", fix: "kafka.topics.create",
		also: byTopic,
	},
	"topic that may not be created": {
		plant: func(t *testing.T, p *patient) {
			p.topic = testkit.Unique(t)
			p.allow(t, p.topic, kadm.OpWrite, kadm.OpDescribe, kadm.OpDescribeConfigs)
			p.kafka += "\n  topics: {create: {partitions: 3, replication_factor: 1}}"
		},
		check: "kafka_rights", state: doctor.Failed, says: "may not create it", fix: "--operation Create",
		also: byTopic,
	},
	"more in-sync replicas than replicas": {
		plant: func(t *testing.T, p *patient) { p.topic = p.writable(t, map[string]string{"min.insync.replicas": "2"}) },
		check: "min_insync_replicas", state: doctor.Failed, says: "nothing is ever accepted", fix: "min.insync.replicas=1",
	},
	"unclean leader election": {
		plant: func(t *testing.T, p *patient) {
			p.topic = p.writable(t, map[string]string{"unclean.leader.election.enable": "true"})
		},
		check: "min_insync_replicas", state: doctor.Warning, says: "lacks acknowledged events", fix: "unclean.leader.election.enable=false",
	},
	"short retention": {
		plant: func(t *testing.T, p *patient) {
			p.topic = p.writable(t, map[string]string{"retention.ms": "3600000"})
		},
		check: "retention", state: doctor.Warning, says: "keeps events for 1h, less than the longest outage of 3 days", fix: "retention.ms=259200000",
	},
	"PostgreSQL in the clear": {
		plant: func(t *testing.T, p *patient) {
			here := fmt.Sprintf("127.0.0.1:%d", p.postgres.Port)
			p.dsn = strings.Replace(p.dsn, here, testkit.ProxyOutside(t, here).Addr(), 1)
		},
		check: "postgres_tls", state: doctor.Warning, says: "in the clear", fix: "verify-full",
	},
}

// postgresChecks are all but Kafka's.
func postgresChecks() []string {
	names, _ := doctor.Checks()
	return append(names[:len(names)-len(byTopic)-3:len(names)-len(byTopic)-3], "message_size", "kafka_clock")
}
