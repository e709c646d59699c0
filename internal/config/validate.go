package config

import (
	"errors"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/postrider/postrider/router"
)

// The values of keys that take one of a few words.
const (
	DeliveryAtLeastOnce = "at-least-once"
	deliveryExactlyOnce = "exactly-once"

	PartitionFollow = "follow"
	PartitionPin    = "pin"

	LogJSON    = "json"
	LogConsole = "console"
	LogAuto    = "auto"
)

// SASL mechanisms, in Kafka's own spelling.
const (
	MechanismPlain       = "PLAIN"
	MechanismScramSHA256 = "SCRAM-SHA-256"
	MechanismScramSHA512 = "SCRAM-SHA-512"
)

var (
	// PostgreSQL's own rule for slot names; upper case is not folded but refused (case C06).
	slotName      = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)
	publisherName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,63}$`)
)

// maxIdentifier is PostgreSQL's NAMEDATALEN minus one, in bytes; a longer name
// would be cut in silence.
const maxIdentifier = 63

func (c *Config) validate(r *report) {
	for _, b := range c.bounds() {
		b.check(r)
	}
	c.validatePublisher(r)
	c.validatePostgres(r)
	c.validateKafka(r)
	c.validateSources(r)
	c.validatePurge(r)
	c.validateLocal(r)
	c.validateAcross(r)
}

func (c *Config) validatePublisher(r *report) {
	if !publisherName.MatchString(c.Publisher.Name) && c.Publisher.Name != "" {
		r.follow("publisher.name", "wants 1 to 63 of the characters A-Z a-z 0-9 _ . -")
	}
	if c.Publisher.Delivery == deliveryExactlyOnce {
		r.follow("publisher.delivery", "exactly-once is not available yet; use at-least-once")
		return
	}
	oneOf(r, "publisher.delivery", c.Publisher.Delivery, DeliveryAtLeastOnce)
}

func (c *Config) validatePostgres(r *report) {
	p := &c.Postgres
	switch {
	case p.Slot == "":
		r.follow("postgres.slot", "is missing")
	case !slotName.MatchString(p.Slot):
		r.follow("postgres.slot", "wants 1 to 63 of the characters a-z 0-9 _, which is all that PostgreSQL allows in the name of a slot")
	}
	if len(p.Publication) == 0 {
		r.follow("postgres.publication", "is missing")
	}
	seen := map[string]bool{}
	for i, name := range p.Publication {
		path := "postgres.publication"
		if len(p.Publication) > 1 {
			path = index(path, i)
		}
		identifier(r, path, name)
		if seen[name] {
			r.follow(path, "names the same publication again")
		}
		seen[name] = true
	}
	if p.usesFields() {
		oneOf(r, "postgres.sslmode", p.SSLMode, "disable", "allow", "prefer", "require", "verify-ca", "verify-full")
	}
	p.checkParsed(r)
}

func (c *Config) validateKafka(r *report) {
	k := &c.Kafka
	if len(k.Brokers) == 0 {
		r.follow("kafka.brokers", "is missing; give at least one host:port")
	}
	seen := map[string]bool{}
	for i, broker := range k.Brokers {
		path := index("kafka.brokers", i)
		if !isAddress(broker, false) {
			r.follow(path, "wants host:port with a port from 1 to 65535")
		} else if seen[broker] {
			r.follow(path, "names the same broker again")
		}
		seen[broker] = true
	}
	if k.ClientID == "" {
		r.follow("kafka.client_id", "is empty")
	}
	oneOf(r, "kafka.compression", k.Compression, "none", "gzip", "snappy", "lz4", "zstd")
	oneOf(r, "kafka.partition_change", k.PartitionChange, PartitionFollow, PartitionPin)
	if s := k.SASL; s != nil {
		oneOf(r, "kafka.sasl.mechanism", s.Mechanism, MechanismPlain, MechanismScramSHA256, MechanismScramSHA512)
		if s.Username == "" {
			r.follow("kafka.sasl.username", "is missing")
		}
	}
}

func (c *Config) validateSources(r *report) {
	if len(c.Sources) == 0 {
		r.follow("sources", "is missing; name at least one outbox table")
		return
	}
	for i := range c.Sources {
		c.Sources[i].validate(r, index("sources", i))
	}
	c.askRouter(r)
}

func (s *Source) validate(r *report, path string) {
	switch {
	case s.Table == TableName{}:
		r.follow(join(path, "table"), "is missing")
	default:
		identifier(r, join(path, "table.schema"), s.Table.Schema)
		identifier(r, join(path, "table.name"), s.Table.Name)
	}
}

// askRouter has the router check mappings and routes: it owns their rules.
func (c *Config) askRouter(r *report) {
	_, err := router.New(c.Router())
	if err == nil {
		return
	}
	for _, err := range unjoin(err) {
		problem := new(router.ConfigError)
		if !errors.As(err, &problem) {
			r.follow("sources", "%s", err.Error())
			continue
		}
		path := problem.Path
		if source, ok := strings.CutSuffix(path, ".schema"); ok {
			path = join(source, "table")
		}
		if strings.HasSuffix(path, ".table") && !r.clean(path) {
			continue // said above, with what to write
		}
		r.follow(path, "%s", problem.Problem)
	}
}

func unjoin(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

func (c *Config) validateLocal(r *report) {
	if !isAddress(c.Admin.Listen, true) {
		r.follow("admin.listen", "wants host:port; an empty host listens on all addresses")
	}
	if host, _, err := net.SplitHostPort(c.Admin.Listen); err == nil && c.Admin.Pprof && !isLoopback(host) {
		r.follow("admin.pprof", "wants admin.listen on a loopback address, such as 127.0.0.1:9464: there is no login before the profiles; "+
			"reach it with ssh -L or kubectl port-forward")
	}
	oneOf(r, "log.level", c.Log.Level, "trace", "debug", "info", "warn", "error")
	oneOf(r, "log.format", c.Log.Format, LogJSON, LogConsole, LogAuto)
}

// validateAcross compares keys of which each may be right by itself.
func (c *Config) validateAcross(r *report) {
	if c.Kafka.BatchBytes > c.Publisher.Window {
		r.follow("kafka.batch_bytes", "is %s, more than publisher.window, which is %s", c.Kafka.BatchBytes, c.Publisher.Window)
	}
	status, sender := c.Replication.StatusInterval, c.Replication.WALSenderTimeout
	if sender > 0 && status > sender/3 {
		r.follow("replication.status_interval", "is %s, more than a third of replication.wal_sender_timeout, which is %s: PostgreSQL would drop the connection",
			status, sender)
	}
}

// identifier checks a name as PostgreSQL would store it.
func identifier(r *report, path, name string) {
	switch {
	case name == "":
		r.follow(path, "is empty")
	case len(name) > maxIdentifier:
		r.follow(path, "has %d bytes; PostgreSQL cuts names after %d", len(name), maxIdentifier)
	case strings.ContainsRune(name, 0):
		r.follow(path, "holds a NUL character")
	}
}

func oneOf(r *report, path, value string, allowed ...string) {
	if slices.Contains(allowed, value) {
		return
	}
	if value == "" {
		r.follow(path, "is missing; want %s", orList(allowed))
		return
	}
	r.follow(path, "wants %s", orList(allowed))
}

func orList(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// isLoopback does not resolve names: what localhost is to others is not known here.
func isLoopback(host string) bool {
	address := net.ParseIP(host)
	return host == "localhost" || address != nil && address.IsLoopback()
}

func isAddress(address string, local bool) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" && !local || strings.ContainsAny(address, " \t/") {
		return false
	}
	n, err := strconv.Atoi(port)
	return err == nil && n <= 65535 && (n >= 1 || local && n == 0)
}
