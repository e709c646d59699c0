package devstack

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

const host = "127.0.0.1"

// Servers need ports that are known before they listen and that stay theirs
// over a restart. They are drawn from below the range from which kernels take
// ports for outgoing connections, so that a client cannot sit on a stopped
// server's port.
const (
	portLow  = 15000
	portHigh = 32000
)

// givenPorts remembers what this process has handed out.
var givenPorts struct {
	sync.Mutex
	taken map[int]bool
}

// freePort finds a port on which nobody listens.
func freePort() (int, error) {
	givenPorts.Lock()
	defer givenPorts.Unlock()
	if givenPorts.taken == nil {
		givenPorts.taken = map[int]bool{}
	}
	for range 1000 {
		port := portLow + rand.IntN(portHigh-portLow)
		if givenPorts.taken[port] || !listenable(port) {
			continue
		}
		givenPorts.taken[port] = true
		return port, nil
	}
	return 0, errors.New("no free port found on " + host)
}

func listenable(port int) bool {
	l, err := net.Listen("tcp", address(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

func address(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
