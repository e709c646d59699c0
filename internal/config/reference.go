package config

// Key documents one key. The sample configuration and the tables of
// docs/configuration.md are generated from the list below, and a test holds the
// list against the structs.
type Key struct {
	// Path with [] for the items of a list.
	Path string
	// Type is what a person has to write.
	Type string
	// Sample is what the sample configuration shows where there is no default.
	Sample string
	// Active keys are not commented out in the sample configuration.
	Active bool
	// Required keys have neither a default nor an alternative.
	Required bool
	// Default describes a default that is not a constant; constants are read
	// from the code.
	Default string
	// Doc is a sentence or two.
	Doc string
}

// Reference lists all keys in the order of the file.
func Reference() []Key {
	var keys []Key
	for _, part := range [][]Key{publisherKeys, postgresKeys, replicationKeys, kafkaKeys, sourceKeys, mappingKeys, routeKeys, sourcePurgeKeys, parkingKeys, purgeKeys, replayKeys, localKeys} {
		keys = append(keys, part...)
	}
	return keys
}

const (
	typeText     = "text"
	typeNumber   = "number"
	typeSize     = "size"
	typeDuration = "duration"
	typeColumn   = "column"
	typeFile     = "file"
	typeSection  = "section"
)

var publisherKeys = []Key{
	{Path: "publisher", Type: typeSection, Active: true, Doc: "What this relay is called and what it may hold."},
	{
		Path: "publisher.name", Type: typeText, Default: "the slot's name", Sample: "outbox_slot",
		Doc: "Names the row of the checkpoint table and the metrics. 1 to 63 of A-Z a-z 0-9 _ . -",
	},
	{Path: "publisher.delivery", Type: "at-least-once", Doc: "exactly-once is not available yet."},
	{
		Path: "publisher.window", Type: typeSize,
		Doc: "Memory for events that Kafka has not acknowledged. When it is used up, reading from PostgreSQL stops; feedback does not. 256KiB to 2GiB.",
	},
	{
		Path: "publisher.shutdown_timeout", Type: typeDuration,
		Doc: "How long SIGTERM lets events that were read reach Kafka. 1s to 1h.",
	},
}

var postgresKeys = []Key{
	{
		Path: "postgres", Type: typeSection, Active: true,
		Doc: "The primary that holds the outbox, not a connection pooler. Either host, port, database and user, or dsn.",
	},
	{
		Path: "postgres.host", Type: typeText, Sample: "localhost", Active: true, Default: "required without dsn",
		Doc: "Name, address or folder of a Unix socket; of several with commas between them the primary is taken.",
	},
	{Path: "postgres.port", Type: typeNumber, Default: "5432", Sample: "5432", Doc: "1 to 65535."},
	{Path: "postgres.database", Type: typeText, Sample: "shop", Active: true, Default: "required without dsn", Doc: "A slot belongs to one database."},
	{
		Path: "postgres.user", Type: typeText, Sample: "postrider", Active: true, Default: "required without dsn",
		Doc: "A role with LOGIN and REPLICATION; `postrider setup --print` lists all that it needs.",
	},
	{
		Path: "postgres.password", Type: typeText, Sample: "${POSTRIDER_PG_PASSWORD}", Default: "none",
		Doc: "Better from the environment or a file than written here.",
	},
	{
		Path: "postgres.password_file", Type: typeFile, Sample: "/run/secrets/postgres_password", Default: "none",
		Doc: "A file that holds the password in one line; instead of password.",
	},
	{Path: "postgres.sslmode", Type: "disable, allow, prefer, require, verify-ca, verify-full", Default: "prefer", Sample: "verify-full", Doc: "As in libpq. Only verify-full makes sure of the server."},
	{Path: "postgres.sslrootcert", Type: typeFile, Sample: "/etc/postrider/postgres-ca.pem", Default: "the system's", Doc: "Authorities that may have signed the server's certificate."},
	{Path: "postgres.sslcert", Type: typeFile, Sample: "/etc/postrider/postgres.pem", Default: "none", Doc: "Client certificate."},
	{Path: "postgres.sslkey", Type: typeFile, Sample: "/run/secrets/postgres.key", Default: "none", Doc: "Key of the client certificate."},
	{
		Path: "postgres.dsn", Type: typeText, Sample: "${POSTRIDER_PG_DSN}", Default: "none",
		Doc: "URL or keyword/value connection string, instead of the keys above; password and password_file may stand beside a dsn without one.",
	},
	{Path: "postgres.dsn_file", Type: typeFile, Sample: "/run/secrets/postgres_dsn", Default: "none", Doc: "A file that holds the dsn in one line; instead of dsn."},
	{Path: "postgres.connect_timeout", Type: typeDuration, Doc: "For one attempt to connect to one address, authentication included; connect_timeout in dsn goes before it. 1s to 5m."},
	{
		Path: "postgres.slot", Type: typeText, Sample: "outbox_slot", Active: true, Required: true,
		Doc: "The replication slot; `postrider setup` creates it. 1 to 63 of a-z 0-9 _",
	},
	{
		Path: "postgres.publication", Type: "name or list of names", Sample: "outbox_pub", Active: true, Required: true,
		Doc: "The publication, under its exact name without SQL quotes.",
	},
}

var replicationKeys = []Key{
	{Path: "replication", Type: typeSection, Active: true, Doc: "The stream from PostgreSQL."},
	{
		Path: "replication.wal_sender_timeout", Type: typeDuration,
		Doc: "Sent to the server as this connection's wal_sender_timeout. 0s leaves the server's own; else 1s to 24h.",
	},
	{
		Path: "replication.status_interval", Type: typeDuration,
		Doc: "Longest pause between two confirmations. 0s is a third of wal_sender_timeout, at most 10s; never more than that third.",
	},
	{Path: "replication.tcp_user_timeout", Type: typeDuration, Doc: "After how long a link that acknowledges nothing is given up. 1s to 1h."},
	{
		Path: "replication.max_row_bytes", Type: typeSize,
		Doc: "A larger row is refused without being read into memory; a bytea counts twice, as hexadecimal digits. 1KiB to 1GiB.",
	},
}

var kafkaKeys = []Key{
	{
		Path: "kafka", Type: typeSection, Active: true,
		Doc: "Where events go. Producing is idempotent with acks=all; there is no key to lower either.",
	},
	{
		Path: "kafka.brokers", Type: "list of host:port", Sample: "[localhost:9092]", Active: true, Required: true,
		Doc: "Addresses to begin with; the cluster names the rest. A text with commas between the addresses will do, so that one variable can hold them.",
	},
	{Path: "kafka.client_id", Type: typeText, Doc: "Shows in the brokers' logs and quotas."},
	{Path: "kafka.tls", Type: typeSection, Doc: "Being there turns TLS on; `tls: {}` trusts the system's authorities. Certificates are always verified."},
	{Path: "kafka.tls.ca_file", Type: typeFile, Sample: "/etc/postrider/kafka-ca.pem", Default: "the system's", Doc: "Authorities that may have signed the brokers' certificates."},
	{Path: "kafka.tls.cert_file", Type: typeFile, Sample: "/etc/postrider/kafka.pem", Default: "none", Doc: "Client certificate; together with key_file."},
	{Path: "kafka.tls.key_file", Type: typeFile, Sample: "/run/secrets/kafka.key", Default: "none", Doc: "Key of the client certificate."},
	{Path: "kafka.tls.server_name", Type: typeText, Sample: "kafka.internal", Default: "the broker's host", Doc: "The name that the brokers' certificates must carry."},
	{Path: "kafka.sasl", Type: typeSection, Doc: "Credentials, where the brokers ask for them."},
	{Path: "kafka.sasl.mechanism", Type: "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512", Sample: "SCRAM-SHA-512", Default: "required in sasl", Doc: "PLAIN sends the password as it is: only with tls."},
	{Path: "kafka.sasl.username", Type: typeText, Sample: "postrider", Default: "required in sasl", Doc: "The user."},
	{Path: "kafka.sasl.password", Type: typeText, Sample: "${POSTRIDER_KAFKA_PASSWORD}", Default: "none", Doc: "Better from the environment or a file than written here."},
	{Path: "kafka.sasl.password_file", Type: typeFile, Sample: "/run/secrets/kafka_password", Default: "none", Doc: "A file that holds the password in one line; instead of password."},
	{Path: "kafka.compression", Type: "none, gzip, snappy, lz4, zstd", Doc: "Of record batches. lz4 and zstd pay for most payloads."},
	{
		Path: "kafka.batch_bytes", Type: typeSize,
		Doc: "Size before compression at which a batch is closed; the topic's max.message.bytes bounds it further. 1KiB to 8MiB, not above publisher.window.",
	},
	{Path: "kafka.topics", Type: typeSection, Doc: "Topics that do not exist are waited for."},
	{Path: "kafka.topics.create", Type: typeSection, Doc: "Being there lets Postrider create missing topics."},
	{Path: "kafka.topics.create.partitions", Type: typeNumber, Default: "-1", Sample: "6", Doc: "-1 is the broker's default; else 1 to 100000."},
	{Path: "kafka.topics.create.replication_factor", Type: typeNumber, Default: "-1", Sample: "3", Doc: "-1 is the broker's default; else 1 to 100."},
	{Path: "kafka.topics.create.configs", Type: "keys and texts", Sample: `{min.insync.replicas: "2"}`, Default: "none", Doc: "Topic settings."},
	{
		Path: "kafka.partition_change", Type: "follow, pin",
		Doc: "When a topic gets more partitions: follow uses them as soon as nothing of the topic is on its way; pin keeps the number that was found at start.",
	},
	{
		Path: "kafka.authorization_grace", Type: typeDuration,
		Doc: "How long a refused authorisation or login is retried before the relay ends with exit code 4. 1s to 24h.",
	},
}

var sourceKeys = []Key{
	{Path: "sources", Type: typeSection, Active: true, Required: true, Doc: "The outbox tables, each with its mapping. One process, one slot, many tables."},
	{
		Path: "sources[].table", Type: "schema.table, or {schema, name}", Sample: "public.outbox", Active: true, Required: true,
		Doc: "Exact names without SQL quotes. A name that has a dot itself needs the long form.",
	},
	{
		Path: "sources[].profile", Type: "default, debezium, quarkus, polling, prisma", Default: "none", Sample: "default",
		Doc: "A known layout whose mapping and routes stand where this source says nothing.",
	},
	{
		Path: "sources[].partitions", Type: "true, false", Default: "false", Sample: "true",
		Doc: "The table is partitioned and published without publish_via_partition_root.",
	},
	{
		Path: "sources[].on_refusal", Type: "park_aggregate, park_event, halt",
		Doc: "An event that cannot be published, ever: park_aggregate keeps it and every later event of its topic and key in postrider.parked, in order; park_event keeps it alone, and the order of its key is broken; halt stops the relay with exit code 6.",
	},
	{
		Path: "sources[].dead_letter_topic", Type: "topic", Default: "none", Sample: "outbox.dead-letters",
		Doc: "Gets a copy of each event that is parked, for teams that watch topics; docs/refusals.md says what is in it. What counts is the row in postrider.parked.",
	},
}

var mappingKeys = []Key{
	{Path: "sources[].mapping", Type: typeSection, Active: true, Doc: "Which column is what. Nothing is guessed from a column's name."},
	{Path: "sources[].mapping.event_id", Type: typeColumn, Sample: "event_id", Active: true, Required: true, Doc: "Identifies the event. NULL and the empty text are refused."},
	{Path: "sources[].mapping.key", Type: typeColumn, Sample: "aggregate_id", Active: true, Required: true, Doc: "The record key: events of one key keep their order. NULL is refused."},
	{Path: "sources[].mapping.empty_key", Type: "refuse, allow", Doc: "For a key of length 0."},
	{Path: "sources[].mapping.payload", Type: typeColumn, Sample: "payload", Active: true, Required: true, Doc: "The record value, byte for byte."},
	{Path: "sources[].mapping.null_payload", Type: "refuse, tombstone, null", Doc: "For an SQL NULL. null is Event Router's way where there is an envelope."},
	{Path: "sources[].mapping.blank_payload", Type: "keep, tombstone", Doc: "For a text of blanks only."},
	{Path: "sources[].mapping.aggregate_type", Type: typeColumn, Sample: "aggregate_type", Active: true, Default: "none", Doc: "For topics and routes."},
	{Path: "sources[].mapping.event_type", Type: typeColumn, Sample: "event_type", Active: true, Default: "none", Doc: "For topics and routes; travels in the header event_type."},
	{Path: "sources[].mapping.aggregate_version", Type: typeColumn, Sample: "aggregate_version", Default: "none", Doc: "For topics and routes, and for a header if one is named."},
	{
		Path: "sources[].mapping.timestamp", Type: "column, or {column, unit}", Sample: "occurred_at", Default: "the time of commit",
		Doc: "The record's timestamp: timestamptz, timestamp (as UTC), or bigint with a unit of s, ms, us or ns.",
	},
	{Path: "sources[].mapping.partition", Type: typeColumn, Sample: "partition", Default: "murmur2 of the key", Doc: "An integer column with the partition; NULL leaves it to the key."},
	{Path: "sources[].mapping.tombstone", Type: typeColumn, Sample: "deleted", Default: "none", Doc: "A boolean column: true makes the value null."},
	{Path: "sources[].mapping.event_id_header", Type: typeText, Doc: "Header of the event id; - leaves it out."},
	{Path: "sources[].mapping.event_type_header", Type: typeText, Default: "event_type", Sample: "event_type", Doc: "Header of the event type; - leaves it out."},
	{Path: "sources[].mapping.aggregate_version_header", Type: typeText, Default: "none", Sample: "aggregate_version", Doc: "Header of the aggregate's version."},
	{
		Path: "sources[].mapping.headers", Type: "list of column, or {column, name, format}", Default: "none", Sample: "[trace_id, {column: tenant, name: x-tenant}]",
		Doc: "Further headers, in this order. format: text is PostgreSQL's own text, debezium what Debezium's connector writes.",
	},
	{Path: "sources[].mapping.headers_column", Type: typeColumn, Default: "none", Sample: "headers", Doc: "A json or jsonb column with one flat object of strings; each member becomes a header."},
	{Path: "sources[].mapping.envelope", Type: typeSection, Doc: "Being there wraps payload and named columns in one JSON object."},
	{Path: "sources[].mapping.envelope.mode", Type: "json, debezium", Default: "json", Sample: "json", Doc: "json splices the payload in unchanged; debezium writes it as a JSON string, as Connect's converter does."},
	{Path: "sources[].mapping.envelope.payload_name", Type: typeText, Default: "payload", Sample: "payload", Doc: "The member that holds the payload."},
	{Path: "sources[].mapping.envelope.payload_as", Type: "string, json", Default: "string", Sample: "string", Doc: "For a payload that is neither json nor jsonb."},
	{Path: "sources[].mapping.envelope.fields", Type: "list of column, or {column, name}", Default: "none", Sample: "[{column: event_type, name: type}]", Doc: "Further members, in this order."},
	{Path: "sources[].mapping.on_missing", Type: "error, ignore", Doc: "For a column of headers, envelope or partition that the table does not have."},
	{Path: "sources[].mapping.on_no_match", Type: "refuse, raw", Doc: "For an event that no route takes. raw is Event Router's way: the field's own value is the topic."},
}

var routeKeys = []Key{
	{Path: "sources[].routes", Type: typeSection, Default: "topic: outbox.event.${aggregate_type}", Active: true, Doc: "Tried in order; the first that applies gives the topic."},
	{
		Path: "sources[].routes[].topic", Type: "template", Sample: "outbox.event.${aggregate_type}", Active: true, Default: "none",
		Doc: "A text with ${field} in it; the environment is written ${env:NAME} here.",
	},
	{Path: "sources[].routes[].name", Type: typeText, Default: "none", Sample: "orders", Doc: "For messages to people."},
	{
		Path: "sources[].routes[].match", Type: "list of conditions", Default: "always", Sample: "[{field: event_type, glob: Order*}]",
		Doc: "All must hold. Each has a field (aggregate_type, event_type, aggregate_version, key, or column.NAME) and one of exact, glob and regex (RE2).",
	},
	{Path: "sources[].routes[].by", Type: typeText, Default: "aggregate_type", Sample: "aggregate_type", Doc: "The field that regex looks at."},
	{Path: "sources[].routes[].regex", Type: "regular expression", Default: "none", Sample: "'(?<name>.*)Event'", Doc: "Instead of topic: in Java's syntax, must match the whole value."},
	{Path: "sources[].routes[].on_refusal", Type: "park_aggregate, park_event, halt", Default: "the source's", Sample: "park_event", Doc: "For events of this route."},
	{Path: "sources[].routes[].dead_letter_topic", Type: "topic", Default: "the source's", Sample: "orders.dead-letters", Doc: "For events of this route; - for none."},
	{Path: "sources[].routes[].replacement", Type: "template", Default: "none", Sample: "events.${name}", Doc: "The topic, with the groups of regex."},
}

var parkingKeys = []Key{
	{Path: "parking", Type: typeSection, Active: true, Doc: "Limits of what may be parked. At one of them the next refused event halts."},
	{Path: "parking.max_held_keys", Type: typeNumber, Doc: "Keys whose events wait behind a parked one; each takes some 100 bytes of memory. 1 to 10000000."},
	{Path: "parking.max_events", Type: typeNumber, Doc: "Parked events that are neither published nor discarded. 1 to 1000000000."},
}

var replayKeys = []Key{
	{Path: "replay", Type: typeSection, Active: true, Doc: "`postrider replay`, which publishes events again."},
	{Path: "replay.approval_above", Type: typeNumber, Doc: "A replay of more events needs the approval of a second person. 0 (every replay does) to 1000000000."},
}

var sourcePurgeKeys = []Key{
	{Path: "sources[].purge", Type: typeSection, Doc: "How this table's rows are purged, where it differs from purge below."},
	{Path: "sources[].purge.every", Type: typeDuration, Default: "purge.every", Sample: "1h", Doc: "0s: a relay leaves this table alone."},
	{Path: "sources[].purge.retention", Type: typeDuration, Default: "purge.retention", Sample: "168h", Doc: "How old a row of this table must be."},
	{
		Path: "sources[].purge.age_column", Type: "column, or {column, unit}", Default: "mapping.timestamp, else the time of commit", Sample: "occurred_at",
		Doc: "The column that tells how old a row is: timestamptz, timestamp (as UTC), date, or bigint with a unit (s, ms, us, ns). The time of commit is known where track_commit_timestamp is on.",
	},
}

var purgeKeys = []Key{
	{
		Path: "purge", Type: typeSection, Active: true,
		Doc: "Deletes rows that the checkpoint proves to be published, for `postrider purge` and, where every says so, while the relay runs; the role needs DELETE on the tables. docs/purge.md says which rows stay.",
	},
	{Path: "purge.every", Type: typeDuration, Doc: "How often a running relay purges; each time it looks through the whole table. 0s: never; else 1m to 720h."},
	{Path: "purge.retention", Type: typeDuration, Default: "none", Sample: "168h", Doc: "How old a row must be; 0s deletes all that is confirmed. 0s to 20 years."},
	{Path: "purge.batch", Type: typeNumber, Doc: "Rows that one statement deletes, in a transaction of its own. 1 to 10000."},
	{Path: "purge.pause", Type: typeDuration, Doc: "Between two such statements. 0s to 1m."},
}

var localKeys = []Key{
	{Path: "admin", Type: typeSection, Active: true, Doc: "HTTP for /metrics, /healthz, /readyz and /status.json."},
	{Path: "admin.listen", Type: "host:port", Doc: "This machine only by default: there is no login."},
	{
		Path: "admin.pprof", Type: "true, false",
		Doc: "Serves /debug/pprof for `go tool pprof`. Only where admin.listen is a loopback address; docs/profiling.md says how to use it.",
	},
	{Path: "log", Type: typeSection, Active: true, Doc: "The log on standard error. It never holds payloads or secrets."},
	{Path: "log.level", Type: "trace, debug, info, warn, error", Doc: "The least severity that is written."},
	{Path: "log.format", Type: "json, console, auto", Doc: "auto is console on a terminal, else json."},
}
