package devstack_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/postrider/postrider/internal/devstack"
)

func startPostgres(t *testing.T, opts devstack.PostgresOptions) *devstack.Postgres {
	t.Helper()
	p, err := devstack.StartPostgres(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Stop(devstack.Immediate)) })
	return p
}

func query(t *testing.T, dsn, sql string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	defer conn.Close(ctx)
	var s string
	require.NoError(t, conn.QueryRow(ctx, sql).Scan(&s))
	return s
}

func exec(t *testing.T, dsn, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	require.NoError(t, err)
}

func TestPostgresIsReadyForLogicalReplication(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, devstack.PostgresOptions{Settings: map[string]string{"wal_sender_timeout": "5s"}})
	require.Equal(t, "logical", query(t, p.DSN(), "SHOW wal_level"))
	require.Equal(t, "5s", query(t, p.DSN(), "SHOW wal_sender_timeout"))
	require.True(t, strings.HasPrefix(query(t, p.DSN(), "SHOW server_version"), p.Version))
	require.NotEmpty(t, p.Source)
	// The file, not the command line, holds the settings: ALTER SYSTEM works.
	exec(t, p.DSN(), "ALTER SYSTEM SET wal_sender_timeout = '7s'")
	require.NoError(t, p.Restart(t.Context(), devstack.Fast))
	require.Equal(t, "7s", query(t, p.DSN(), "SHOW wal_sender_timeout"))
}

func TestPostgresKeepsDataOverRestartAndKill(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, devstack.PostgresOptions{})
	exec(t, p.DSN(), "CREATE TABLE kept AS SELECT 'here' AS v")
	for _, end := range []func() error{
		func() error { return p.Halt(devstack.Fast) },
		func() error { return p.Halt(devstack.Immediate) },
		p.Kill,
	} {
		require.NoError(t, end())
		require.NoError(t, p.Start(t.Context()))
		require.Equal(t, "here", query(t, p.DSN(), "SELECT v FROM kept"))
	}
}

func TestPostgresRemovesItsTemporaryFolder(t *testing.T) {
	t.Parallel()
	p, err := devstack.StartPostgres(t.Context(), devstack.PostgresOptions{})
	require.NoError(t, err)
	folder := filepath.Dir(p.DataDir())
	require.DirExists(t, folder)
	require.NoError(t, p.Stop(devstack.Fast))
	require.NoDirExists(t, folder)
	require.NoError(t, p.Stop(devstack.Fast), "a second stop is harmless")
}

func TestPostgresShowsItsLogWhenItDoesNotStart(t *testing.T) {
	t.Parallel()
	_, err := devstack.StartPostgres(t.Context(), devstack.PostgresOptions{
		Settings: map[string]string{"shared_buffers": "plenty"},
	})
	require.ErrorContains(t, err, "shared_buffers")
}

// A role other than the superuser needs its password, so that tests of wrong
// credentials prove something.
func TestPostgresAsksRolesForPasswords(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, devstack.PostgresOptions{})
	exec(t, p.DSN(), "CREATE ROLE relay LOGIN PASSWORD 'right'")
	as := func(password string) string {
		return strings.Replace(p.DSN(), devstack.Superuser+"@", "relay:"+password+"@", 1)
	}
	require.Equal(t, "relay", query(t, as("right"), "SELECT current_user"))
	_, err := pgx.Connect(t.Context(), as("wrong"))
	require.ErrorContains(t, err, "password authentication failed")
}

func TestPostgresVersionIsFetchedWhereTheMachineLacksIt(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("fetches 15 MB on a machine with an empty cache")
	}
	p := startPostgres(t, devstack.PostgresOptions{Version: "17"})
	require.True(t, strings.HasPrefix(p.Version, "17."), p.Version)
	require.True(t, strings.HasPrefix(query(t, p.DSN(), "SHOW server_version"), "17."))
	_, err := os.Stat(p.LogFile())
	require.NoError(t, err)
}
