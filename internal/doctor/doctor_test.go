package doctor

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/postrider/postrider/internal/testkit"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/replication"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rule 19: a clock that is off is named, whichever way.
func TestClocksThatDiffer(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	for name, c := range map[string]struct {
		off   time.Duration
		state State
		says  string
	}{
		"agree":       {0, OK, "agree"},
		"ahead":       {time.Minute, Warning, "the database's clock is 1m0s behind this machine's"},
		"behind":      {-time.Minute, Warning, "the database's clock is 1m0s ahead of this machine's"},
		"hours apart": {3 * time.Hour, Failed, "3h0m0s behind"},
	} {
		report, err := Run(t.Context(), Config{
			Only: []string{"clock"}, Replication: replication.Config{ConnString: db.DSN}, Kafka: publisher.Config{Brokers: []string{"127.0.0.1:1"}},
			Now: func() time.Time { return time.Now().Add(c.off) },
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		fix := ""
		if c.state != OK {
			fix = "chrony"
		}
		t.Run(name, func(t *testing.T) { requireOne(t, report.Findings, c.state, c.says, fix) })
	}
}

// Ctrl-C ends it between two questions, whatever is being dialled.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	told := 0
	_, err := Run(ctx, Config{
		Replication: replication.Config{ConnString: "postgres://x@127.0.0.1:1/x?sslmode=disable"}, Kafka: publisher.Config{Brokers: []string{"127.0.0.1:1"}},
	}, func(Finding) { told++; cancel() })
	if !errors.Is(err, context.Canceled) || told != 1 {
		t.Errorf("%d findings, error %v", told, err)
	}
}

func TestOnly(t *testing.T) {
	t.Parallel()
	for _, good := range [][]string{nil, {"slot"}, {"max_*", "kafka_tls"}} {
		if err := ValidateOnly(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"slots", "", "[", "max"} {
		if ValidateOnly([]string{"slot", bad}) == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	names, questions := Checks()
	if len(names) != len(questions) || len(slices.Compact(slices.Sorted(slices.Values(names)))) != len(names) {
		t.Errorf("%q, %q", names, questions)
	}
}

// Filters as pg_get_expr writes them (rule 21).
func TestShardsOfFilters(t *testing.T) {
	t.Parallel()
	for filter, want := range map[string][2]int{
		"((get_byte(decode(md5(COALESCE(aggregate_id, ''::text)), 'hex'::text), 15) % 4) = 3)": {4, 3},
		"((id % (2)::bigint) = 1)":            {2, 1},
		"((id % (16)::bigint) = (9)::bigint)": {16, 9},
		"(aggregate_type = 'Order'::text)":    {},
	} {
		of, r, is := shard(filter)
		if is != (want[0] > 0) || of != want[0] || r != want[1] {
			t.Errorf("%s: %d of %d, %v", filter, r, of, is)
		}
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", 10 * time.Second: "10s", 90 * time.Second: "1m30s", time.Minute: "1m", time.Hour: "1h", 90 * time.Minute: "1h30m",
		25 * time.Hour: "25h", 72 * time.Hour: "3 days", 60 * time.Hour: "2.5 days",
	} {
		if got := words(d); got != want {
			t.Errorf("%d is %q, want %q", d, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1 << 20: "1 MiB", 1536: "1.5 KiB", 10 << 30: "10 GiB"} {
		if got := bytesText(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}
