package sizing

import (
	"fmt"
	"runtime"
	"time"
)

// The names of what limits, a contract of --json.
const (
	limitBrokers  = "brokers"
	limitDecoding = "decoding"
	limitProcess  = "process"
	limitMachine  = "machine"
	limitStream   = "stream"
)

// What share of a measure makes it the limit. They are rules of thumb: a drain that is
// held up by one thing spends nearly all of its time there.
const (
	brokerShare   = 0.4  // of the drain spent waiting for acknowledgements
	decodingShare = 0.7  // of what PostgreSQL decodes for nobody
	processCores  = 0.85 // of one core: the stream is read on one goroutine
	machineShare  = 0.85 // of all cores
)

// limit says in plain words what was in the way.
func limit(rate, decoding float64, d drained) (name, text string) {
	cores := d.cpu.Seconds() / d.took.Seconds()
	switch {
	case d.forBrokers >= brokerShare:
		return limitBrokers, fmt.Sprintf("the brokers: for %s of the time everything that fits was read, and waited for their acknowledgement. "+
			"More partitions, more or faster brokers, or kafka.compression may help.", percent(d.forBrokers))
	case rate >= decodingShare*decoding:
		return limitDecoding, fmt.Sprintf("PostgreSQL's decoding: it decodes a slot in one process, which manages %s events/s here even for nobody. "+
			"Faster cores there, or smaller and fewer rows, may help; the relay cannot.", rounded(decoding))
	case cores >= processCores:
		return limitProcess, fmt.Sprintf("this process: it used %.1f cores. A faster core, or no compression, may help.", cores)
	case d.machine >= machineShare:
		return limitMachine, fmt.Sprintf("the CPU of this machine: its %s were busy for %s of the time, %.1f of them with this process. "+
			"If PostgreSQL or Kafka runs here too, they share it; a machine of its own for the relay would help.",
			counted(runtime.NumCPU(), "core"), percent(d.machine), cores)
	default:
		return limitStream, fmt.Sprintf("the way from PostgreSQL: this process used %.1f cores and waited for the brokers for %s of the time. "+
			"One process of the server decodes and sends every change by itself, and that, or the network, allows no more; decoding alone it manages %s events/s.",
			cores, percent(d.forBrokers), rounded(decoding))
	}
}

// perEvent is CPU time in microseconds.
func perEvent(cpu time.Duration, rows int) float64 {
	return float64(cpu.Microseconds()) / float64(rows)
}
