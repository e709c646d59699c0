package replication

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// connectLimits bounds an attempt to connect: every address of pc by d, so that one
// that swallows packets does not use up the time of those after it, and the whole
// by what all of them and their names' resolution may take.
func connectLimits(ctx context.Context, pc *pgconn.Config, d time.Duration) (context.Context, context.CancelFunc) {
	pc.ConnectTimeout = d
	return context.WithTimeout(ctx, d*time.Duration(2+len(pc.Fallbacks)))
}

// connectTimeout is what the connection string says, else what the configuration
// does, else 10 s.
func connectTimeout(pc *pgconn.Config, configured time.Duration) time.Duration {
	switch {
	case pc.ConnectTimeout > 0:
		return pc.ConnectTimeout
	case configured > 0:
		return configured
	}
	return defaultConnectTimeout
}

// namedTimeout puts words to the end of the time.
func namedTimeout(d time.Duration, err error) error {
	var netErr net.Error
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &netErr) && netErr.Timeout() {
		return fmt.Errorf("connect timed out after %s: %w", d, err)
	}
	return err
}
