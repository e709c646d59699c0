package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// A secret is masked in whatever way it is printed, and so is a whole configuration.
func TestSecretsAreNeverPrinted(t *testing.T) {
	t.Parallel()
	c := loadGood(t, "environment.good.yml")
	dsn := loadGood(t, "dsn_file.good.yml")
	for _, value := range []any{c, *c, c.Postgres, c.Kafka, c.Kafka.SASL, *c.Kafka.SASL, c.Postgres.connString, dsn, *dsn, NewSecret(pgSecret)} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			assertNoSecret(t, verb, fmt.Sprintf(verb, value))
		}
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		assertNoSecret(t, "json", string(text))
	}
	for _, shown := range []*Config{c, dsn} {
		text, err := shown.YAML()
		if err != nil {
			t.Fatal(err)
		}
		assertNoSecret(t, "yaml", string(text))
	}
	text, _ := c.YAML()
	if strings.Count(string(text), mask) != 2 {
		t.Errorf("want both passwords masked:\n%s", text)
	}
}

func assertNoSecret(t *testing.T, how, text string) {
	t.Helper()
	for _, secret := range []string{pgSecret, kafkaSecret, fmt.Sprintf("%x", pgSecret), fmt.Sprintf("%x", kafkaSecret)} {
		if strings.Contains(text, secret) {
			t.Errorf("%s shows a secret: %s", how, text)
		}
	}
}

func loadGood(t *testing.T, name string) *Config {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse("testdata/"+name, data, testEnvironment(nil))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Any password reaches the driver as it was meant, from fields and from a dsn.
func TestConnStringQuotesPasswords(t *testing.T) {
	t.Parallel()
	passwords := []string{"plain", "with space", `quote ' and \ backslash`, "p@ss:w/ord?&=%41#", "ключ", "${", `"`}
	connections := map[string]string{
		"fields":        "host: db\n  port: 5433\n  database: shop\n  user: relay",
		"url":           "dsn: postgres://relay@db:5433/shop",
		"keyword/value": "dsn: host=db port=5433 user=relay dbname=shop",
	}
	for name, connection := range connections {
		for _, password := range passwords {
			text := "postgres:\n  " + connection + "\n  password: ${SECRET}\n  slot: s\n  publication: p\n" + restOfMinimal
			c, err := Parse("x.yaml", []byte(text), testEnvironment(map[string]string{"SECRET": password}))
			if err != nil {
				t.Errorf("%s, password %q: %v", name, password, err)
				continue
			}
			got, err := pgconn.ParseConfig(c.ReplicationConfig().ConnString)
			if err != nil {
				t.Errorf("%s, password %q: %v", name, password, err)
				continue
			}
			if got.Password != password || got.Host != "db" || got.Port != 5433 || got.User != "relay" || got.Database != "shop" {
				t.Errorf("%s, password %q: got %q, %s@%s:%d/%s", name, password, got.Password, got.User, got.Host, got.Port, got.Database)
			}
		}
	}
}

const restOfMinimal = `kafka: {brokers: [localhost:9092]}
sources:
  - table: public.outbox
    mapping: {event_id: event_id, key: aggregate_id, payload: payload, aggregate_type: aggregate_type}
`

// FuzzParse: no input makes it panic, and a problem never shows what stood behind a secret's key.
func FuzzParse(f *testing.F) {
	names, _ := os.ReadDir("testdata")
	for _, entry := range names {
		if data, err := os.ReadFile("testdata/" + entry.Name()); err == nil {
			f.Add(string(data))
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse("testdata/fuzz.yml", []byte(text), testEnvironment(nil))
		if problems := new(Problems); err != nil && !errors.As(err, &problems) {
			t.Fatalf("not a list of problems: %v", err)
		}
		if err == nil {
			if _, err := c.YAML(); err != nil {
				t.Fatal(err)
			}
			c.Router()
			c.PublisherConfig()
		}
	})
}
