package relay

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/publisher"
)

var update = flag.Bool("update", false, "write docs/metrics.md anew")

// descriptions collects what is registered.
type descriptions struct{ rows []string }

var fqName = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "([^"]*)",.*variableLabels: \{([^}]*)\}`)

func (d *descriptions) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc, 16)
	go func() { c.Describe(descs); close(descs) }()
	for desc := range descs {
		m := fqName.FindStringSubmatch(desc.String())
		if m == nil {
			return fmt.Errorf("cannot read %s", desc)
		}
		labels := m[3]
		if labels != "" {
			labels = "`" + labels + "`"
		}
		d.rows = append(d.rows, fmt.Sprintf("| `%s` | %s | %s |", m[1], labels, m[2]))
	}
	return nil
}

func (d *descriptions) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := d.Register(c); err != nil {
			panic(err)
		}
	}
}

func (d *descriptions) Unregister(prometheus.Collector) bool { return true }

// TestMetricListIsCurrent holds docs/metrics.md against what is registered.
func TestMetricListIsCurrent(t *testing.T) {
	var d descriptions
	newMetrics(&d)
	p, err := publisher.New(publisher.Config{Brokers: []string{"localhost:9092"}, Registerer: &d})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close() //nolint:errcheck // nothing was started
	slices.Sort(d.rows)
	want := "# Metrics\n\nServed at `/metrics`. Positions are byte positions in the WAL: subtract them from each other, or from\n" +
		"`pg_current_wal_lsn() - '0/0'`. This list is made by `go test ./internal/relay -run TestMetricListIsCurrent -update`.\n\n" +
		"`/healthz` is 200 while the process works. `/readyz` is 200 while it holds the slot and the wire is alive, also while Kafka is\n" +
		"away; 503 with the reason otherwise, as on a standby. For Kafka, watch `postrider_oldest_unconfirmed_seconds` and\n" +
		"`postrider_publisher_alarm`. In `/status.json`, `events_published` counts this run; in `checkpoint show`, all runs.\n\n" +
		"| name | labels | meaning |\n|---|---|---|\n" + strings.Join(d.rows, "\n") + "\n"
	const path = "../../docs/metrics.md"
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != want {
		t.Errorf("docs/metrics.md is not current: run this test with -update")
	}
}
