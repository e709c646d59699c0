package replication

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// ConnectSQL opens an SQL session whose output is that of the stream (rule 10:
// whoever reads the table by SQL must get the same bytes) and which the server
// does not end for being idle. The time for it is the string's connect_timeout, else
// 10 s. The error is an *operr.Error.
func ConnectSQL(ctx context.Context, connString, appName string) (*pgx.Conn, error) {
	pc, err := pgx.ParseConfig(connString)
	if err != nil {
		return nil, classify("parse connection string", "", err)
	}
	pc.DialFunc = dialer(defaultTCPUserTimeout)
	if appName != "" {
		pc.RuntimeParams["application_name"] = appName
	}
	applyPins(pc.RuntimeParams, outputPins, sessionPins)
	timeout := connectTimeout(&pc.Config, 0)
	ctx, cancel := connectLimits(ctx, &pc.Config, timeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, pc)
	if err != nil {
		return nil, classify("connect", target(&pc.Config), namedTimeout(timeout, err))
	}
	if _, err := verifySession(ctx, conn.PgConn()); err != nil {
		_ = conn.PgConn().Close(context.WithoutCancel(ctx)) // the verification's error is the one to report
		return nil, err
	}
	return conn, nil
}

// closePatience bounds the end of an SQL session.
const closePatience = 2 * time.Second

// CloseSQL ends a session of ConnectSQL. Where a context cut a statement off, pgx cancels it on
// the server beside the program: without the wait for that the program is gone first, and the
// statement goes on, waits for locks, and may yet be carried out.
func CloseSQL(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closePatience)
	defer cancel()
	_ = conn.Close(ctx) // nothing was promised on it
	select {
	case <-conn.PgConn().CleanupDone():
	case <-ctx.Done():
	}
}
