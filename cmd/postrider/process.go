package main

import (
	"os"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/receipts"
)

// memoryBase is what the process takes beside the window: stacks, connection buffers, the ledger, metrics. With the
// defaults the limit is 48 MiB; a very large row may pass it for as long as it is there, since the limit is soft.
const memoryBase = 16 << 20

// limitMemory makes the garbage collector keep the promise of bounded memory,
// unless the environment says otherwise (GOMEMLIMIT).
func limitMemory(cfg *config.Config) {
	if _, set := os.LookupEnv("GOMEMLIMIT"); set {
		return
	}
	debug.SetMemoryLimit(memoryLimit(cfg))
}

func memoryLimit(cfg *config.Config) int64 {
	limit := int64(cfg.Publisher.Window) + memoryBase
	if cfg.Receipts.Keep > 0 {
		limit += receipts.Buffer
	}
	return limit
}

// newRegistry has the process's own metrics in it.
func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	info := readVersion()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "postrider_build_info", Help: "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": info.Version, "commit": info.Commit, "go": info.Go},
	})
	build.Set(1)
	registry.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}
