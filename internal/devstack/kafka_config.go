package devstack

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// properties is a node's server.properties.
type properties map[string]string

// properties gives node i's configuration: broker and controller in one process.
func (k *Kafka) properties(i int) properties {
	n := k.nodes[i]
	replicas := min(len(k.nodes), 3)
	minISR := k.opts.MinISR
	if minISR == 0 {
		minISR = max(1, replicas-1)
	}
	var voters []string
	for _, v := range k.nodes {
		voters = append(voters, fmt.Sprintf("%d@%s", v.id, address(v.controllerPort)))
	}
	p := properties{
		"process.roles":                  "broker,controller",
		"node.id":                        strconv.Itoa(n.id),
		"controller.quorum.voters":       strings.Join(voters, ","),
		"controller.listener.names":      "CONTROLLER",
		"listeners":                      fmt.Sprintf("PLAINTEXT://%s,CONTROLLER://%s", address(n.port), address(n.controllerPort)),
		"advertised.listeners":           "PLAINTEXT://" + k.advertised(n),
		"listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
		"log.dirs":                       k.work.join(n.name(), "data"),

		"default.replication.factor":               strconv.Itoa(replicas),
		"min.insync.replicas":                      strconv.Itoa(minISR),
		"offsets.topic.replication.factor":         strconv.Itoa(replicas),
		"offsets.topic.num.partitions":             "1",
		"transaction.state.log.replication.factor": strconv.Itoa(replicas),
		"transaction.state.log.min.isr":            strconv.Itoa(minISR),
		"transaction.state.log.num.partitions":     "1",
		"group.initial.rebalance.delay.ms":         "0",
		"auto.create.topics.enable":                "false",
		"num.network.threads":                      "2",
		"num.io.threads":                           "4",
		// A dead leader is noticed in seconds, not tens of them.
		"broker.session.timeout.ms":             "3000",
		"broker.heartbeat.interval.ms":          "500",
		"controller.quorum.fetch.timeout.ms":    "2000",
		"controller.quorum.election.timeout.ms": "1000",
		// A topic of a test is small; a preallocated index of 10 MB a partition is not.
		"log.index.size.max.bytes": "1048576",
	}
	if k.opts.Secure {
		maps.Copy(p, k.secureProperties(n))
	}
	maps.Copy(p, k.opts.Settings)
	return p
}

// advertised is where clients find a node.
func (k *Kafka) advertised(n *kafkaNode) string {
	if k.opts.Advertise != nil {
		return k.opts.Advertise(address(n.port))
	}
	return address(n.port)
}

func (p properties) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&b, "%s=%s\n", name, strings.ReplaceAll(p[name], "\n", "\\\n"))
	}
	return b.String()
}

// clusterID is a random id as StorageTool makes them: 16 bytes, URL-safe base64.
func clusterID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[0] &= 0x7f           // an id must not begin with '-', which would look like an option
	return base64.RawURLEncoding.EncodeToString(b[:])
}
