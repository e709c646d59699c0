//go:build !linux

package replication

import (
	"net"
	"syscall"
	"time"
)

// otherPause is what a busy stream waits before a read where the kernel cannot be told to gather.
const otherPause = time.Millisecond

// tuneDial does nothing: the options are Linux's. TCP keepalive remains.
func tuneDial(syscall.RawConn, string, time.Duration) error { return nil }

func gathererOf(net.Conn) gatherer { return pauser(otherPause) }

// pauser gathers by a pause.
type pauser time.Duration

func (d pauser) gather(*socket) { time.Sleep(time.Duration(d)) }

func (pauser) rest() {}
