package debezium

import (
	_ "embed"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// JVM is what the JVM is told. With the options of Connect's start script (2 GiB of heap, G1 with short pauses) it was no faster and took
// more memory; the parallel collector takes a tenth less CPU than G1, so the tuned variant has it.
func JVM(tuned bool) string {
	if tuned {
		return "-Xmx1g -XX:+UseParallelGC"
	}
	return "-Xmx1g"
}

// Options are one worker with one connector.
type Options struct {
	// Dir holds the properties, the offsets and nothing else; the worker's memory of positions is in it, so
	// that an empty one starts at the slot's position.
	Dir string

	Host     string
	Port     int
	User     string
	Password string
	Database string

	Slot        string // exists, plugin pgoutput
	Publication string // exists
	Table       string // "public.outbox"

	Brokers []string
	Topic   string

	// Extra are further properties of the connector; they go before the others.
	Extra map[string]string

	// Tuned is the variant with short polls and large batches.
	Tuned bool
}

//go:embed log4j2.xml
var logConfig []byte

// Write makes the files of o.Dir and returns java's arguments.
func Write(o Options, jars string) (args []string, err error) {
	worker, connector, logs := filepath.Join(o.Dir, "worker.properties"),
		filepath.Join(o.Dir, "connector.properties"), filepath.Join(o.Dir, "log4j2.xml")
	for path, text := range map[string][]byte{
		worker: properties(o.Worker()), connector: properties(o.Connector()), logs: logConfig,
	} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return nil, err
		}
	}
	return append(strings.Fields(JVM(o.Tuned)),
		"-Dlog4j2.configurationFile="+logs,
		"-cp", filepath.Join(jars, "*"),
		"org.apache.kafka.connect.cli.ConnectStandalone", worker, connector), nil
}

// Worker are the properties of the Connect worker. StringConverter keeps the text of the payload as it is.
func (o Options) Worker() map[string]string {
	return map[string]string{
		"bootstrap.servers":            strings.Join(o.Brokers, ","),
		"key.converter":                "org.apache.kafka.connect.storage.StringConverter",
		"value.converter":              "org.apache.kafka.connect.storage.StringConverter",
		"offset.storage.file.filename": filepath.Join(o.Dir, "offsets"),
		// Connect does not run without a REST listener; nobody calls it. 0 is any free port.
		"listeners": "http://127.0.0.1:0",
		// All classes are on one class path, so there is nothing to scan a plugin folder for.
		"plugin.discovery": "service_load",
	}
}

// Connector are the properties of the connector: where it reads, how it finds the outbox's columns, Tuned's, and Extra.
func (o Options) Connector() map[string]string {
	p := map[string]string{
		"name":                        "outbox",
		"connector.class":             "io.debezium.connector.postgresql.PostgresConnector",
		"tasks.max":                   "1",
		"topic.prefix":                "bench",
		"database.hostname":           o.Host,
		"database.port":               strconv.Itoa(o.Port),
		"database.user":               o.User,
		"database.password":           o.Password,
		"database.dbname":             o.Database,
		"table.include.list":          o.Table,
		"plugin.name":                 "pgoutput",
		"slot.name":                   o.Slot,
		"publication.name":            o.Publication,
		"publication.autocreate.mode": "disabled",
		"snapshot.mode":               "no_data",
		"tombstones.on.delete":        "false",

		"transforms":                                          "outbox",
		"transforms.outbox.type":                              "io.debezium.transforms.outbox.EventRouter",
		"transforms.outbox.table.field.event.id":              "event_id",
		"transforms.outbox.table.field.event.key":             "aggregate_id",
		"transforms.outbox.table.field.event.payload":         "payload",
		"transforms.outbox.table.expand.json.payload":         "false",
		"transforms.outbox.table.fields.additional.placement": "event_type:header:eventType",
		"transforms.outbox.route.by.field":                    "aggregate_type",
		"transforms.outbox.route.topic.replacement":           o.Topic,
	}
	if o.Tuned {
		maps.Copy(p, tuned)
	}
	maps.Copy(p, o.Extra)
	return p
}

// tuned asks for changes every 5 ms instead of 500 ms, lets 81,920 of them wait (8,192), hands 20,480 over at once (2,048), and lets the
// producer gather batches of 1 MiB (16 KiB) for 5 ms (0). Tried besides, without a gain: an idempotent producer with five requests in
// flight, extended.headers.enabled=false, heaps of 512 MiB and 2 GiB.
var tuned = map[string]string{
	"poll.interval.ms":                   "5",
	"max.batch.size":                     "20480",
	"max.queue.size":                     "81920",
	"producer.override.batch.size":       "1048576",
	"producer.override.linger.ms":        "5",
	"producer.override.buffer.memory":    "134217728",
	"producer.override.compression.type": "none",
}

// TunedText names what the tuned variant sets.
func TunedText() string {
	return strings.ReplaceAll(strings.TrimSpace(string(properties(tuned))), "\n", " ")
}

// properties is Java's format. No value here has a character that it would escape, but for backslashes.
func properties(p map[string]string) []byte {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&b, "%s=%s\n", key, strings.ReplaceAll(p[key], `\`, `\\`))
	}
	return []byte(b.String())
}
