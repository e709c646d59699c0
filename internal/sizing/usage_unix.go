//go:build unix

package sizing

import (
	"syscall"
	"time"
)

// readUsage is cheap: it is called while the relay drains.
func readUsage() usage {
	var u usage
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) == nil {
		u.process = time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	u.busy, u.total = machineTime()
	return u
}
