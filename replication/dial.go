package replication

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// keepAlive finds a peer that is gone while nothing is being sent: 15 s of
// silence, then four probes 5 s apart.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}

// dialer opens TCP connections that notice a half-open link by themselves
// (rule 8): no timer of ours could tell it from a busy walsender.
func dialer(userTimeout time.Duration) pgconn.DialFunc {
	d := net.Dialer{KeepAliveConfig: keepAlive}
	d.Control = func(network, address string, c syscall.RawConn) error {
		if !strings.HasPrefix(network, "tcp") {
			return nil
		}
		return tuneDial(c, address, userTimeout)
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return newSocket(conn), nil
	}
}

// near says that address, an IP and a port, is on this machine.
func near(address string) bool {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return false
	}
	if to.Addr().Unmap().IsLoopback() {
		return true
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range own {
		if n, ok := a.(*net.IPNet); ok && n.IP.Equal(net.IP(to.Addr().Unmap().AsSlice())) {
			return true
		}
	}
	return false
}
