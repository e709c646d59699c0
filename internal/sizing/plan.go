package sizing

import (
	"fmt"
	"strings"
)

// Plan is what a run will make, before it does.
type Plan struct {
	// Name is that of the database, the publication, the slot and the topic.
	Name string
	// Server is PostgreSQL's name and address, Brokers the addresses of Kafka.
	Server  string
	Brokers []string
	// Rows are all that will be written, WALBytes the WAL that they make, TopicBytes
	// what the topic holds of them before compression, once for each replica. Estimates.
	Rows, Partitions     int
	WALBytes, TopicBytes int64
	// Leftovers are slots that earlier runs have left behind: they hold back WAL.
	Leftovers []string
}

// What a row costs beside its payload, measured on PostgreSQL 15 with rows of the
// default outbox table: its other columns, the index, the record of the commit. A new
// database is 8 MB of WAL since PostgreSQL 15.
const (
	walPerRow      = 280
	walPerDatabase = 8 << 20
	topicPerRow    = 110
)

func newPlan(cfg Config, name, server string) Plan {
	rows := cfg.Rows + cfg.latencyRows()
	return Plan{
		Name: name, Server: server, Brokers: cfg.Kafka.Brokers, Rows: rows, Partitions: cfg.Partitions,
		WALBytes:   int64(rows)*int64(cfg.Payload+walPerRow) + walPerDatabase,
		TopicBytes: int64(rows) * int64(cfg.Payload+topicPerRow),
	}
}

// String is the plan for people.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "On %s and the brokers at %s a run makes, and removes at its end:\n", p.Server, strings.Join(p.Brokers, ", "))
	fmt.Fprintf(&b, "  the database %s with a table, a publication and a replication slot of that name\n", p.Name)
	fmt.Fprintf(&b, "  the topic %s with %s\n", p.Name, counted(p.Partitions, "partition"))
	fmt.Fprintf(&b, "It writes %s rows: about %s of WAL, and %s into the topic, times its replicas, before compression.\n",
		number(p.Rows), size(p.WALBytes), size(p.TopicBytes))
	b.WriteString("It is a load: servers that others use will be slower meanwhile.\n")
	fmt.Fprintf(&b, "Ctrl-C ends it and removes all of that. If the process is killed, remove by hand:\n%s", indent(p.ByHand()))
	for _, slot := range p.Leftovers {
		fmt.Fprintf(&b, "An earlier run has left the slot %[1]s behind, which keeps WAL from being removed. If that run has ended:\n%[2]s", slot, indent(byHand(slot)))
	}
	return b.String()
}

// ByHand are the commands that remove what a killed run has left.
func (p Plan) ByHand() []string { return byHand(p.Name) }

func byHand(name string) []string {
	return []string{
		fmt.Sprintf("SELECT pg_drop_replication_slot('%s');", name),
		fmt.Sprintf("DROP DATABASE %s WITH (FORCE);", name),
		fmt.Sprintf("kafka-topics.sh --bootstrap-server … --delete --topic %s", name),
	}
}

func indent(lines []string) string { return "  " + strings.Join(lines, "\n  ") + "\n" }
