package publisher

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// The package comment lists exactly the metrics that there are, with their labels.
func TestMetricsAreThoseInThePackageComment(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	_, section, _ := strings.Cut(string(doc), "# Metrics")
	for _, m := range regexp.MustCompile(`(?m)^//\t(\S+)$`).FindAllStringSubmatch(section, -1) {
		listed = append(listed, m[1])
	}
	p, err := New(Config{Brokers: []string{"b:1"}, Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	ch := make(chan *prometheus.Desc, 100)
	for _, c := range p.metrics.collectors() {
		c.Describe(ch)
	}
	close(ch)
	var have []string
	re := regexp.MustCompile(`fqName: "postrider_publisher_([^"]+)".*variableLabels: \{([^}]*)\}`)
	for d := range ch {
		m := re.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("name without the prefix: %s", d)
		}
		name := m[1]
		if m[2] != "" {
			name += "{" + m[2] + "}"
		}
		have = append(have, name)
	}
	slices.Sort(have)
	if !slices.Equal(have, listed) {
		t.Fatalf("metrics:\n%s\nthe package comment:\n%s", strings.Join(have, "\n"), strings.Join(listed, "\n"))
	}
}

func TestMetricsAreRegisteredOnceAndGivenBack(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	cfg := Config{Brokers: []string{"b:1"}, Registerer: reg}
	first, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(cfg); err == nil {
		t.Fatal("two publishers share one registry's names")
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := New(cfg)
	if err != nil {
		t.Fatalf("after Close: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
}
