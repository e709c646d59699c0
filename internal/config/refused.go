package config

// refusedKeys are keys that people expect and that are refused for a reason,
// which is better said than "unknown key" (case C24: acknowledgements cannot be
// configured below all).
var refusedKeys = map[string]string{
	"kafka.acks":                  acksReason,
	"kafka.required_acks":         acksReason,
	"kafka.idempotence":           "is not an option: producing is always idempotent",
	"kafka.retries":               retriesReason,
	"kafka.max_attempts":          retriesReason,
	"kafka.linger":                lingerReason,
	"kafka.linger_ms":             lingerReason,
	"kafka.async":                 "is not an option: a position is confirmed only after the broker's acknowledgement",
	"kafka.tls.enabled":           "is not an option: the section tls turns TLS on by being there; write tls: {} for the system's authorities",
	"kafka.tls.insecure":          verifyReason,
	"kafka.tls.skip_verify":       verifyReason,
	"kafka.tls.ca":                "is not an option: name a file with ca_file",
	"replication.start_lsn":       "is not an option: a slot cannot be rewound; events are sent again with replay",
	"replication.proto_version":   "is not an option: protocol 1 is what hands over committed transactions in commit order",
	"replication.streaming":       "is not an option: unfinished transactions are never received",
	"publisher.exactly_once":      "is not an option: write delivery: exactly-once, once it is available",
	"postgres.slots":              "is not an option: one process serves one slot; name it with slot",
	"postgres.publications":       "is written publication; it takes a name or a list of names",
	"postgres.dbname":             "is written database",
	"postgres.username":           "is written user",
	"postgres.replication":        "is not an option: Postrider opens both kinds of session itself",
	"admin.pprof":                 "is not available yet",
	"sources[].schema":            "belongs into the table: table: {schema: …, name: …} or schema.table",
	"publisher.on_refusal":        "belongs to a source, sources[].on_refusal, or to one of its routes",
	"kafka.topics.auto_create":    "is written create, with partitions, replication_factor and configs",
	"publisher.max_in_flight":     "is not an option: one batch is in flight per partition, which is what keeps order",
	"kafka.max_in_flight":         "is not an option: one batch is in flight per partition, which is what keeps order",
	"kafka.sasl.password_command": "is not available; use password, password_file or ${ENV}",
}

const (
	acksReason    = "is not an option: it is always all; with less, a change of leader loses events that were confirmed"
	retriesReason = "is not an option: what may heal is retried for ever; giving up would lose the event or break its key's order"
	lingerReason  = "is not an option: an idle partition sends at once, a busy one collects while its batch is on the way"
	verifyReason  = "is not an option: certificates are always verified; name your authority with ca_file"
)
