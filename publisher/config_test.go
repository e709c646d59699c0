package publisher

import (
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/compress"
)

func TestValidateReportsAllProblems(t *testing.T) {
	t.Parallel()
	err := Config{
		Brokers: []string{"nohost", ":9092"}, BatchBytes: 1, MaxRequestBytes: 9 << 20, Window: 1, MaxInFlight: 9,
		Compression: compress.Compression(9), PartitionChange: "guess", SASL: &SASL{Mechanism: "MD5", Username: "u"},
		CreateTopics: &TopicSpec{}, RetryBackoff: time.Minute, RetryBackoffMax: time.Second,
	}.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"brokers[0]", "brokers[1]", "batch_bytes", "max_request_bytes", "window", "max_in_flight", "compression",
		"partition_change", "sasl", "topics.create.partitions", "topics.create.replication_factor", "retry_backoff: 1m0s is above retry_backoff_max 1s",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no word about %s in:\n%v", want, err)
		}
	}
	if err := (Config{Brokers: []string{"localhost:9092"}}).Validate(); err != nil {
		t.Fatalf("the defaults: %v", err)
	}
	for _, m := range []string{"PLAIN", "SCRAM-SHA-256", "scram-sha-512"} {
		if err := (Config{Brokers: []string{"b:1"}, SASL: &SASL{Mechanism: m, Username: "u", Password: "p"}}).Validate(); err != nil {
			t.Errorf("%s: %v", m, err)
		}
	}
}
