package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/postrider/postrider/internal/devstack"
	"github.com/postrider/postrider/internal/doctor"
	"github.com/postrider/postrider/internal/testkit"
)

// clinic is a PostgreSQL and a Kafka that ask who comes: the servers of a healthy set-up,
// into which each test plants a fault.
type clinic struct {
	postgres *devstack.Postgres
	kafka    *testkit.PrivateBroker
	admin    *kadm.Client
}

// Users of the broker. The one may write to the topics that it is given and ask for the
// cluster's time, the other nothing at all.
const (
	relayUser    = "postrider"
	strangerUser = "stranger"
	userPassword = "right-1"
)

func openClinic(t *testing.T) *clinic {
	t.Helper()
	c := &clinic{
		postgres: testkit.PrivatePostgres(t, devstack.PostgresOptions{Settings: map[string]string{"max_slot_wal_keep_size": "10GB"}}),
		kafka: testkit.PrivateKafka(t, devstack.KafkaOptions{Secure: true, Settings: map[string]string{
			"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
			// The broker's own user, and its controller's listener.
			"super.users": "User:relay;User:ANONYMOUS",
		}}),
	}
	c.admin = kadm.NewClient(c.kafka.Client(t))
	var users []kadm.UpsertSCRAM
	for _, user := range []string{relayUser, strangerUser} {
		users = append(users, kadm.UpsertSCRAM{User: user, Mechanism: kadm.ScramSha512, Iterations: 4096, Password: userPassword})
	}
	results, err := c.admin.AlterUserSCRAMs(t.Context(), nil, users)
	if err == nil {
		err = results.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	c.grant(t, kadm.NewACLs().Clusters().Allow("User:"+relayUser).Operations(kadm.OpDescribe))
	return c
}

func (c *clinic) grant(t *testing.T, acls *kadm.ACLBuilder) {
	t.Helper()
	results, err := c.admin.CreateACLs(t.Context(), acls.AllowHosts())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Err != nil {
			t.Fatalf("%v: %s", r.Err, r.ErrMessage)
		}
	}
}

// writable makes a topic that the relay's user may use.
func (c *clinic) writable(t *testing.T, configs map[string]string) string {
	t.Helper()
	topic := c.kafka.NewTopic(t, 3, configs)
	c.allow(t, topic, kadm.OpWrite, kadm.OpDescribe, kadm.OpDescribeConfigs)
	return topic
}

func (c *clinic) allow(t *testing.T, topic string, operations ...kadm.ACLOperation) {
	t.Helper()
	c.grant(t, kadm.NewACLs().Topics(topic).Allow("User:"+relayUser).Operations(operations...))
}

// patient is one healthy set-up: a database of its own with a table, a role, a publication
// and a slot, and a topic.
type patient struct {
	*clinic
	db   *testkit.DB
	role string
	// What the configuration says; a fault changes it.
	topic, dsn, brokers, user, password, source, kafka string
	// args are the command's besides --config and --json.
	args []string
}

func (c *clinic) admit(t *testing.T) *patient {
	t.Helper()
	p := newPatient(t, c.postgres, c.writable(t, nil))
	p.clinic = c
	p.brokers = fmt.Sprintf("%q", c.kafka.Bootstrap()[0])
	p.kafka = fmt.Sprintf("tls: {ca_file: %q}", c.kafka.Server.CAFile)
	return p
}

// newPatient is set up on a server; its brokers are nowhere.
func newPatient(t *testing.T, server *devstack.Postgres, topic string) *patient {
	t.Helper()
	p := &patient{
		db: testkit.NewDB(t, server.DSN()), role: testkit.Unique(t), topic: topic,
		brokers: `"127.0.0.1:1"`, user: relayUser, password: userPassword, source: "profile: default",
	}
	p.dsn = p.db.DSN
	runBinary(t, nil, "setup", "--create-outbox", "--role", p.role, "--config", p.config(t)).expect(t, exitDone)
	t.Cleanup(func() { dropRole(t, p.db, p.role) })
	p.db.Exec(t, "ALTER ROLE "+p.role+" PASSWORD 'pw'")
	p.dsn = p.db.As(p.role, "pw")
	p.insert(t, "'1'", "now()")
	return p
}

func (p *patient) config(t *testing.T) string {
	t.Helper()
	return writeConfig(t, fmt.Sprintf(`postgres: {dsn: %q, slot: %s, publication: %s}
kafka:
  brokers: [%s]
  sasl: {mechanism: SCRAM-SHA-512, username: %s, password: %s}
  %s
admin: {listen: "127.0.0.1:0"}
sources:
  - {table: public.outbox, %s, routes: [{topic: %q}]}
`, p.dsn, p.db.Slot, p.db.Publication, p.brokers, p.user, p.password, p.kafka, p.source, p.topic))
}

// insert commits an event; key and stamp are SQL.
func (p *patient) insert(t *testing.T, key, stamp string) {
	t.Helper()
	p.db.Exec(t, `INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload, occurred_at)
		VALUES (gen_random_uuid(), 'Order', `+key+`, 'Placed', '{"a": 1}', `+stamp+`)`)
}

// examine runs the command and gives what it found.
func (p *patient) examine(t *testing.T) (result, []doctor.Finding) {
	t.Helper()
	r := runBinary(t, nil, append([]string{"doctor", "--json", "--config", p.config(t)}, p.args...)...)
	var found []doctor.Finding
	if err := json.Unmarshal([]byte(r.out), &found); err != nil {
		t.Fatalf("%v\nstdout: %s\nstderr: %s", err, r.out, r.err)
	}
	return r, found
}

// fault is planted into a healthy set-up.
type fault struct {
	plant func(*testing.T, *patient)
	// check and state are those of the finding that must name it; says and fix are parts of its texts.
	check     string
	state     doctor.State
	says, fix string
	// also are checks that the fault may touch besides: what it makes impossible to ask, or
	// is another side of it. No other may have found anything.
	also []string
}

// examine plants it and requires that it is named.
func (f fault) examine(t *testing.T, p *patient) {
	t.Helper()
	f.plant(t, p)
	r, found := p.examine(t)
	f.requireNamed(t, r, found)
}

// requireNamed demands that the fault is named with its fix, and nothing else.
func (f fault) requireNamed(t *testing.T, r result, found []doctor.Finding) {
	t.Helper()
	named := false
	for _, x := range found {
		switch {
		case x.Name == f.check && x.State == f.state && strings.Contains(x.Finding, f.says) && strings.Contains(x.Fix, f.fix):
			named = true
		case x.State == doctor.OK || x.Name == f.check || slices.Contains(f.also, x.Name) || x.State == doctor.NotChecked && harmless(x):
		default:
			t.Errorf("it also found: %s %s: %s (try: %s)", x.State, x.Name, x.Finding, x.Fix)
		}
	}
	if !named {
		for _, x := range found {
			t.Logf("%s %s: %s (try: %s)", x.State, x.Name, x.Finding, x.Fix)
		}
		t.Fatalf("no finding %s of %s that says %q, with a fix that has %q", f.state, f.check, f.says, f.fix)
	}
	code := exitDone
	if f.state == doctor.Failed {
		code = 8
	}
	if f.state != doctor.Warning { // what it makes impossible to ask decides then
		r.expect(t, code)
	}
}

// harmless are those that cannot be asked in these tests: the role may not read where the
// data directory is, and the server may be too old.
func harmless(x doctor.Finding) bool {
	return x.Name == "disk" || x.Name == "idle_replication_slot_timeout"
}
