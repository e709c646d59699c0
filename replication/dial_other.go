//go:build !linux

package replication

import (
	"syscall"
	"time"
)

// setUserTimeout does nothing: the option is Linux's. TCP keepalive remains.
func setUserTimeout(syscall.RawConn, time.Duration) error { return nil }
