package plan

import "github.com/postrider/postrider/bench/result"

// sizes are what a quick run has less of.
type sizes struct {
	rounds int
	base   result.Params
	// fewer rows for slow contenders.
	fewer map[string]int
	rates []rate
	scale []size
	// Seconds of rest (0: none), of an outage, and events a second during it.
	idle, idlePeers, outage, outageRate float64
	huge                                result.Params
}

type rate struct{ perSec, seconds float64 }

// size is one parameter that is not the base's.
type size struct {
	axis  string // as in result.Params.Axis
	value int
	rows  int // 0 for the base's
}

func (s size) params(base result.Params) result.Params {
	p := base
	p.Axis = s.axis
	if s.rows > 0 {
		p.Rows = s.rows
	}
	switch s.axis {
	case "rows":
		p.Rows = s.value
	case "partitions":
		p.Partitions = s.value
	case "payload":
		p.PayloadBytes = s.value
	case "transaction":
		p.RowsPerTxn = s.value
	}
	return p
}

var full = sizes{
	rounds: 3,
	base:   result.Params{Rows: 500_000, Partitions: 6, PayloadBytes: 200, RowsPerTxn: 1},
	fewer:  map[string]int{"debezium": 250_000, "debezium-tuned": 250_000, "watermill": 30_000},
	rates:  []rate{{10, 15}, {1000, 10}, {5000, 8}},
	// Fewer rows of the large payloads: 200 MB and 400 MB of them.
	scale: []size{
		{axis: "rows", value: 50_000},
		{axis: "rows", value: 2_000_000},
		{axis: "partitions", value: 1},
		{axis: "partitions", value: 24},
		{axis: "partitions", value: 96},
		{axis: "payload", value: 2_000, rows: 100_000},
		{axis: "payload", value: 20_000, rows: 20_000},
		{axis: "transaction", value: 10},
		{axis: "transaction", value: 1000},
	},
	idle: 300, idlePeers: 60, outage: 600, outageRate: 2000,
	huge: result.Params{Rows: 1_000_000, Partitions: 6, PayloadBytes: 1000, RowsPerTxn: 1_000_000},
}

var quick = sizes{
	rounds: 1,
	base:   result.Params{Rows: 200_000, Partitions: 6, PayloadBytes: 200, RowsPerTxn: 1},
	fewer:  map[string]int{"debezium": 80_000, "debezium-tuned": 80_000, "watermill": 5_000},
	rates:  []rate{{1000, 5}},
	scale:  []size{{axis: "rows", value: 50_000}, {axis: "partitions", value: 24}, {axis: "payload", value: 2_000, rows: 20_000}},
	idle:   20, outage: 20, outageRate: 2000,
	huge: result.Params{Rows: 100_000, Partitions: 6, PayloadBytes: 1000, RowsPerTxn: 100_000},
}

// drainOrder is a round.
var drainOrder = []string{
	"peek", "pg_recvlogical", "postrider", "postrider-gzip", "postrider-snappy", "postrider-lz4", "postrider-zstd", "postrider-tls",
	"debezium", "debezium-tuned", "polling", "polling-tuned", "watermill",
}

// latencyOrder are those whose latency and rest are measured.
var latencyOrder = []string{"postrider", "debezium", "debezium-tuned", "polling", "polling-tuned", "watermill"}

// limits are rates that a contender cannot follow: its latency there would be the length of its queue.
var limits = map[string]float64{"watermill": 1000}

// speeds are for estimates: events a second on two cores.
var speeds = map[string]float64{
	"peek": 150_000, "pg_recvlogical": 60_000, "postrider": 120_000, "postrider-gzip": 40_000, "postrider-snappy": 100_000,
	"postrider-lz4": 100_000, "postrider-zstd": 80_000, "postrider-tls": 80_000, "debezium": 22_000, "debezium-tuned": 22_000, "polling": 30_000, "polling-tuned": 45_000, "watermill": 2_000,
}

// overhead is for start, check and end of a step.
func overhead(contender string) float64 {
	switch contender {
	case "debezium", "debezium-tuned":
		return 12
	case "postrider-tls":
		return 8
	case "peek", "pg_recvlogical":
		return 0.5
	}
	return 3
}
