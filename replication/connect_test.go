package replication

import (
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/testkit"
)

// swallows accepts connections and never answers, as a host that died behind a
// load balancer does.
func swallows(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln.Addr().String()
}

// Of several hosts the first one that does not answer must not use up the time of the
// next: after a failover the relay would never reach the new primary.
func TestConnectPassesASilentHost(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	u, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = swallows(t) + "," + u.Host
	u.RawQuery += "&connect_timeout=1"
	conn, err := ConnectSQL(within(t), u.String(), "test")
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close(within(t))
	u.RawQuery = strings.TrimSuffix(u.RawQuery, "&connect_timeout=1")
	s, err := Connect(within(t), Config{ConnString: u.String(), ConnectTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	s.Close(within(t))
}

// The connection string's own time counts, for SQL as for replication.
func TestConnectTimeoutOfTheString(t *testing.T) {
	t.Parallel()
	dsn := "postgres://u@" + swallows(t) + "/d?sslmode=disable&connect_timeout=1"
	_, sqlErr := ConnectSQL(within(t), dsn, "test")
	_, err := Connect(within(t), Config{ConnString: dsn, ConnectTimeout: time.Hour})
	for _, err := range []error{sqlErr, err} {
		if err == nil || !operr.IsTransient(err) || !strings.Contains(err.Error(), "connect timed out after 1s") {
			t.Error(err)
		}
	}
}
