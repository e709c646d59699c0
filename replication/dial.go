package replication

import (
	"context"
	"net"
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
	d.Control = func(network, _ string, c syscall.RawConn) error {
		if userTimeout <= 0 || len(network) < 3 || network[:3] != "tcp" {
			return nil
		}
		return setUserTimeout(c, userTimeout)
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		return d.DialContext(ctx, network, addr)
	}
}
