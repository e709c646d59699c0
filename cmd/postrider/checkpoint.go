package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/replication"
)

func newCheckpointCommand(a *app) *cobra.Command {
	cmd := group(&cobra.Command{Use: "checkpoint", Short: "Show the position, wait for it, prove it, move it"})
	cmd.AddCommand(
		newCheckpointShowCommand(a), newCheckpointListCommand(a), newCheckpointPeekCommand(a), newCheckpointWaitCommand(a),
		newCheckpointVerifyCommand(a), newCheckpointHistoryCommand(a), newCheckpointAdvanceCommand(a), newCheckpointAcceptCommand(a),
		newCheckpointDropCommand(a),
	)
	return cmd
}

// withSQL opens the SQL session that a command needs and closes it.
func withSQL(ctx context.Context, cfg *config.Config, command string, use func(*pgx.Conn) error) error {
	conn, err := connectSQL(ctx, cfg, command)
	if err != nil {
		return err
	}
	defer replication.CloseSQL(ctx, conn)
	return use(conn)
}

// connectSQL adds a hint in the configuration's words where there is none.
func connectSQL(ctx context.Context, cfg *config.Config, command string) (*pgx.Conn, error) {
	conn, err := replication.ConnectSQL(ctx, cfg.Postgres.ConnString(), "postrider "+command)
	var known *operr.Error
	if err != nil && operr.HintOf(err) == "" && errors.As(err, &known) {
		hinted := *known
		hinted.Hint = "check that PostgreSQL runs and that host, port or dsn under postgres are right"
		return nil, &hinted
	}
	return conn, err
}
