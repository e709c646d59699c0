//go:build unix && !linux

package sizing

import (
	"runtime"
	"syscall"
	"time"
)

// machineTime is not read here: the judgement does without.
func machineTime() (busy, total time.Duration) { return 0, 0 }

// resetPeak cannot: the peak is the whole process's.
func resetPeak() {}

// peakRSS is in bytes on macOS and in KiB elsewhere.
func peakRSS() int64 {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	if runtime.GOOS == "darwin" {
		return int64(r.Maxrss)
	}
	return int64(r.Maxrss) << 10
}
