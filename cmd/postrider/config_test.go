package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/operr"
)

// Every problem at once, with path and line; kafka.acks is refused with its reason (case C24).
func TestConfigCheckNamesAllProblems(t *testing.T) {
	t.Parallel()
	path := writeConfig(t, strings.Replace(unreachable, "kafka:\n", "kafka:\n  acks: 1\n  colour: blue\n", 1)+"log: {level: 3, format: yaml}\n")
	want := []string{
		"line 10: kafka.acks: is not an option: it is always all",
		"line 11: kafka.colour: unknown key; known here: brokers",
		"log.level: wants trace", "log.format: wants json", path,
	}
	r := runBinary(t, secretEnv(), "config", "check", "--config", path)
	r.expect(t, operr.Config.ExitCode(), want...)
	for _, command := range []string{"run", "setup", "checkpoint show", "config show"} {
		runBinary(t, secretEnv(), append(strings.Split(command, " "), "--config", path)...).expect(t, operr.Config.ExitCode(), want...)
	}
	r = runBinary(t, secretEnv(), "config", "check", "--json", "--config", path)
	r.expect(t, operr.Config.ExitCode(), want...)
	var got configCheckResult
	if err := json.Unmarshal([]byte(r.out), &got); err != nil || got.Valid || len(got.Problems) != 4 || got.Problems[0].Line != 10 {
		t.Errorf("--json: %v\n%s", err, r.out)
	}
}

func TestConfigCheckOfACorrectFile(t *testing.T) {
	t.Parallel()
	path := writeConfig(t, unreachable)
	r := runBinary(t, secretEnv(), "config", "check", "--config", path)
	r.expect(t, exitDone)
	if r.out != path+": correct\n" {
		t.Errorf("standard output: %q", r.out)
	}
	var got configCheckResult
	r = runBinary(t, secretEnv(), "config", "check", "--json", "--config", path)
	if err := json.Unmarshal([]byte(r.out), &got); err != nil || !got.Valid || got.Problems == nil || r.code != exitDone {
		t.Errorf("--json: %v\n%s", err, r.out)
	}
	runBinary(t, nil, "config", "check", "--config", path).expect(t, operr.Config.ExitCode(),
		"line 6: postgres.password: environment variable PG_PASSWORD is not set",
		"line 11: kafka.sasl.password: environment variable KAFKA_PASSWORD is not set")
}

func TestConfigShowFillsInAndMasks(t *testing.T) {
	t.Parallel()
	path := writeConfig(t, unreachable)
	r := runBinary(t, secretEnv(), "config", "show", "--config", path)
	r.expect(t, exitDone)
	for _, text := range []string{"window: 32MiB", "name: outbox_slot", "password: '********'", "event_id: event_id", "batch_bytes: 512KiB"} {
		if !strings.Contains(r.out, text) {
			t.Errorf("config show lacks %q:\n%s", text, r.out)
		}
	}
	r = runBinary(t, secretEnv(), "config", "show", "--json", "--config", path)
	var tree struct {
		Publisher struct{ Window string }
		Postgres  struct{ Password string }
	}
	if err := json.Unmarshal([]byte(r.out), &tree); err != nil || tree.Publisher.Window != "32MiB" || tree.Postgres.Password != "********" {
		t.Errorf("--json: %v\n%s", err, r.out)
	}
}

// No command prints a secret, wherever it came from and whatever goes wrong.
func TestSecretsAreNeverPrinted(t *testing.T) {
	t.Parallel()
	fromFiles := strings.NewReplacer("password: ${PG_PASSWORD}", "password_file: pg", `password: "${KAFKA_PASSWORD}"`, "password_file: kafka").Replace(unreachable)
	dsn := strings.NewReplacer(`  host: 127.0.0.1
  port: 1
  database: shop
  user: postrider
  password: ${PG_PASSWORD}
`, "  dsn: DSN\n").Replace(unreachable)
	texts := map[string]string{
		"environment":  unreachable,
		"files":        fromFiles,
		"url":          strings.Replace(dsn, "DSN", "postgres://postrider:${PG_PASSWORD}@127.0.0.1:1/shop", 1),
		"keywords":     strings.Replace(dsn, "DSN", "host=127.0.0.1 port=1 user=postrider dbname=shop password=${PG_PASSWORD}", 1),
		"broken url":   strings.Replace(dsn, "DSN", "postgres://postrider:${PG_PASSWORD}/x@127.0.0.1:1/shop", 1),
		"broken words": strings.Replace(dsn, "DSN", `host=127.0.0.1 "password='${PG_PASSWORD}"`, 1),
		"inline":       strings.NewReplacer("${PG_PASSWORD}", pgSecret, "${KAFKA_PASSWORD}", kafkaSecret).Replace(unreachable) + "bogus: 1\n",
		"not YAML":     strings.NewReplacer("${PG_PASSWORD}", pgSecret+": x", "${KAFKA_PASSWORD}", kafkaSecret).Replace(unreachable),
		"anchor":       strings.Replace(unreachable, "${PG_PASSWORD}", "*"+pgSecret, 1),
		"wrong place":  strings.Replace(unreachable, "port: 1", "port: "+pgSecret, 1),
	}
	commands := []string{"config check", "config check --json", "config show", "config show --json", "checkpoint show", "checkpoint wait --now", "setup", "setup --print"}
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := writeConfig(t, text)
			for file, secret := range map[string]string{"pg": pgSecret, "kafka": kafkaSecret} {
				if err := os.WriteFile(filepath.Join(filepath.Dir(path), file), []byte(secret+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, command := range commands {
				r := runBinary(t, secretEnv(), append(strings.Split(command, " "), "--config", path)...)
				for _, secret := range []string{pgSecret, kafkaSecret} {
					if strings.Contains(r.out+r.err, secret) {
						t.Errorf("%s shows %s:\n%s\n%s", command, secret, r.out, r.err)
					}
				}
			}
		})
	}
}

// A server that does not answer is PostgreSQL's class, with the address and a hint.
func TestUnreachableServerExits3(t *testing.T) {
	t.Parallel()
	path := writeConfig(t, unreachable)
	for _, command := range []string{"checkpoint show", "checkpoint wait --now", "setup"} {
		runBinary(t, secretEnv(), append(strings.Split(command, " "), "--config", path)...).
			expect(t, operr.Postgres.ExitCode(), "127.0.0.1", "Try: ")
	}
}
