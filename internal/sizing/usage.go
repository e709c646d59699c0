package sizing

import "time"

// usage is what the process and its machine have used so far.
type usage struct {
	// process is CPU time, user and system.
	process time.Duration
	// busy and total are the machine's, summed over its cores; zero where it does not say.
	busy, total time.Duration
}

// since gives the CPU time of the process, and which share of the machine was busy; 0
// where the machine does not say.
func (u usage) since(before usage) (process time.Duration, busyShare float64) {
	if total := u.total - before.total; total > 0 {
		busyShare = float64(u.busy-before.busy) / float64(total)
	}
	return u.process - before.process, busyShare
}
