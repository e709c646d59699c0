package config

import (
	"io/fs"
	"os"
	"path/filepath"
)

// testEnvironment has a few variables and files, and nothing of the machine's own.
func testEnvironment(extra map[string]string) Environment {
	env := map[string]string{
		"PG_PASSWORD": pgSecret, "KAFKA_PASSWORD": kafkaSecret, "TOPIC_PREFIX": "shop",
		"BROKERS": "k1:9092, k2:9092", "PG_PORT": "5433", "EMPTY": "",
	}
	for name, value := range extra {
		env[name] = value
	}
	return Environment{
		LookupEnv: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		ReadFile: func(path string) ([]byte, error) {
			switch filepath.Base(path) {
			case "postgres_password":
				return []byte(pgSecret + "\n"), nil
			case "kafka_password":
				return []byte(kafkaSecret + "\r\n"), nil
			case "postgres_dsn":
				return []byte("postgres://relay:" + pgSecret + "@db/shop\n"), nil
			case "empty":
				return []byte("\n"), nil
			case "two_lines":
				return []byte(pgSecret + "\n" + pgSecret + "\n"), nil
			case "not.pem":
				return []byte(pgSecret), nil
			}
			if filepath.Ext(path) == ".pem" || filepath.Ext(path) == ".key" {
				return os.ReadFile(path)
			}
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		},
	}
}

// The secrets of the test corpus: no message may hold any part of them.
const (
	pgSecret    = "hunter2-pg"
	kafkaSecret = "hunter2-kafka"
)
