package config

import (
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/router"
)

func TestConversionToThePackagesConfigs(t *testing.T) {
	t.Parallel()
	c := loadGood(t, "full.good.yml")
	r := c.ReplicationConfig()
	if r.Slot != "outbox_slot" || !reflect.DeepEqual(r.Publications, []string{"outbox_pub", "Pub-1"}) ||
		r.WALSenderTimeout != 30*time.Second || r.StatusInterval != 10*time.Second || r.TCPUserTimeout != 20*time.Second ||
		r.ConnectTimeout != 3*time.Second || r.MaxRowBytes != 4_000_000 {
		t.Errorf("replication: %+v", r)
	}
	p := c.PublisherConfig()
	if p.Window != 64<<20 || p.BatchBytes != 256<<10 || p.Compression != publisher.Zstd || p.PartitionChange != publisher.PinPartitions ||
		p.AuthorizationGrace != 30*time.Second || p.ClientID != "shop" || p.TLS.ServerName != "kafka.internal" {
		t.Errorf("publisher: %+v", p)
	}
	if want := (publisher.SASL{Mechanism: "SCRAM-SHA-512", Username: "relay", Password: kafkaSecret}); *p.SASL != want {
		t.Errorf("SASL differs, mechanism %s", p.SASL.Mechanism)
	}
	create := publisher.TopicSpec{Partitions: 12, ReplicationFactor: 3, Configs: map[string]string{"min.insync.replicas": "2", "retention.ms": "86400000"}}
	if !reflect.DeepEqual(*p.CreateTopics, create) {
		t.Errorf("topics: %+v", p.CreateTopics)
	}
	if err := p.Validate(); err != nil {
		t.Errorf("the publisher refuses what this package accepted: %v", err)
	}
}

func TestConversionToTheRouter(t *testing.T) {
	t.Parallel()
	got := loadGood(t, "full.good.yml").Router().Sources
	if len(got) != 2 || got[1].Schema != "My.Schema" || got[1].Table != "Outbox Events" {
		t.Fatalf("sources: %+v", got)
	}
	want := router.Mapping{
		EventID: "event_id", Key: "aggregate_id", EmptyKey: router.EmptyKeyRefuse, Payload: "payload",
		NullPayload: router.NullPayloadRefuse, BlankPayload: router.BlankPayloadKeep,
		AggregateType: "aggregate_type", EventType: "event_type", AggregateVersion: "aggregate_version",
		Timestamp: router.Timestamp{Column: "occurred_at"}, EventIDHeader: "id", EventTypeHeader: "event_type",
		Headers:   []router.Field{{Column: "trace_id"}, {Column: "tenant", Name: "x-tenant"}},
		OnMissing: router.OnMissingError, OnNoMatch: router.OnNoMatchRefuse,
	}
	if !reflect.DeepEqual(got[0].Mapping, want) || !reflect.DeepEqual(got[1].Mapping, want) {
		t.Errorf("mapping: %+v", got[0].Mapping)
	}
	routes := []router.Route{
		{Topic: "orders", Match: []router.Match{{Field: "event_type", Glob: "Order*"}}, OnRefusal: router.OnRefusalParkEvent, DeadLetterTopic: "orders.dead-letters"},
		{Topic: "outbox.event.${aggregate_type}"},
	}
	if !reflect.DeepEqual(got[0].Routes, routes) {
		t.Errorf("routes: %+v", got[0].Routes)
	}
	if got[0].DeadLetterTopic != "outbox.dead-letters" || got[1].DeadLetterTopic != "" {
		t.Errorf("dead-letter topics %q and %q", got[0].DeadLetterTopic, got[1].DeadLetterTopic)
	}
}

// Every field of the router's types comes back from a round trip, so that a new
// option of the router cannot be forgotten here.
func TestRouterFieldsAreAllConverted(t *testing.T) {
	t.Parallel()
	exact := "x"
	source := router.Source{
		Routes: []router.Route{{Match: []router.Match{{Exact: &exact}}}},
	}
	fillStrings(reflect.ValueOf(&source).Elem())
	back := fromRouter(source)
	if got := back.toRouter(); !reflect.DeepEqual(got, source) {
		t.Errorf("round trip:\n got %+v\nwant %+v", got, source)
	}
}

// fillStrings gives every text, bool, slice and pointer below v a value.
func fillStrings(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillStrings(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillStrings(v.Index(0))
	case reflect.Struct:
		for i := range v.NumField() {
			fillStrings(v.Field(i))
		}
	}
}

func TestDefaultsAreFilledIn(t *testing.T) {
	t.Parallel()
	c := loadGood(t, "minimal.good.yml")
	if c.Publisher.Name != "outbox_slot" || c.Postgres.Port != 5432 || c.Postgres.SSLMode != "prefer" ||
		c.Publisher.ShutdownTimeout != Duration(30*time.Second) || c.Admin.Listen != "127.0.0.1:9464" ||
		c.Sources[0].OnRefusal != "park_aggregate" || c.Sources[0].Routes[0].Topic != router.DefaultTopic {
		t.Errorf("defaults: %+v", c)
	}
}

func TestEnvironmentFillsTypedValues(t *testing.T) {
	t.Parallel()
	c := loadGood(t, "environment.good.yml")
	if c.Postgres.Host != "localhost" || c.Postgres.Port != 5433 || !reflect.DeepEqual(c.Kafka.Brokers, AddressList{"k1:9092", "k2:9092"}) ||
		c.Sources[0].Routes[0].Topic != "shop.${aggregate_type}" || c.PublisherConfig().SASL.Password != kafkaSecret {
		t.Errorf("environment: %+v", c)
	}
}

// What config show prints is a configuration again, but for the masked secrets.
func TestShownConfigurationIsReadBack(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"minimal.good.yml", "full.good.yml"} {
		text, err := loadGood(t, name).YAML()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("testdata/shown.yml", text, testEnvironment(nil))
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
		second, err := again.YAML()
		if err != nil {
			t.Fatal(err)
		}
		if string(second) != string(text) {
			t.Errorf("%s: shown again:\n%s\nfirst:\n%s", name, second, text)
		}
	}
}

// A profile is the ground that the file's own keys are laid over.
func TestProfilesAreOverlaid(t *testing.T) {
	t.Parallel()
	sources := loadGood(t, "profiles.good.yml").Router().Sources
	want, ok := router.Profile("default")
	if !ok {
		t.Fatal("the router has no default profile")
	}
	if got := sources[0].Mapping; got.EventID != want.Mapping.EventID || got.Key != want.Mapping.Key || got.EventID == "" {
		t.Errorf("default: %+v", got)
	}
	quarkus, _ := router.Profile("quarkus")
	got := sources[1]
	if got.Mapping.Key != quarkus.Mapping.Key || got.Mapping.Timestamp.Column != "" || len(got.Routes) != 1 || got.Routes[0].Topic != "events" {
		t.Errorf("quarkus: %+v", got)
	}
}

// Another database of the same server, whatever the connection string names.
func TestConnStringForAnotherDatabase(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"postgres://u:p%40ss@h:6432/shop?sslmode=disable", "postgres://u:p%40ss@h:6432/?sslmode=disable&dbname=shop", "postgresql://u:p%40ss@h:6432?sslmode=disable",
		"host=h port=6432 user=u password='p@ss' dbname=shop sslmode=disable", "host=h port=6432 user=u password=p@ss sslmode=disable",
	} {
		p := Postgres{connString: NewSecret(dsn)}
		got, err := pgconn.ParseConfig(p.ConnStringFor("it's mine"))
		if err != nil || got.Database != "it's mine" || got.Host != "h" || got.Port != 6432 || got.User != "u" || got.Password != "p@ss" || got.TLSConfig != nil {
			t.Errorf("%s: %+v, %v", dsn, got, err)
		}
	}
}
