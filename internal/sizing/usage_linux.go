package sizing

import (
	"bytes"
	"os"
	"strconv"
	"time"
)

// clockTick is the unit of /proc/stat: USER_HZ is 100 on every architecture of Linux.
const clockTick = 10 * time.Millisecond

// machineTime sums the first line of /proc/stat: user, nice, system, idle, iowait, irq,
// softirq, steal. What follows is contained in the first two.
func machineTime() (busy, total time.Duration) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	fields := bytes.Fields(line)
	const idle, iowait, steal = 4, 5, 8
	for i := 1; i < len(fields) && i <= steal; i++ {
		n, err := strconv.ParseInt(string(fields[i]), 10, 64)
		if err != nil {
			return 0, 0
		}
		total += time.Duration(n) * clockTick
		if i != idle && i != iowait {
			busy += time.Duration(n) * clockTick
		}
	}
	return busy, total
}

// resetPeak makes peakRSS begin anew. A kernel that does not do it leaves a peak that
// is too high, never one that is too low.
func resetPeak() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// peakRSS is the most memory that the process held in RAM, in bytes; 0 where that is not known.
func peakRSS() int64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(text) {
		if fields := bytes.Fields(line); len(fields) > 1 && string(fields[0]) == "VmHWM:" {
			kib, _ := strconv.ParseInt(string(fields[1]), 10, 64) // 0: not known
			return kib << 10
		}
	}
	return 0
}
