package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// ErrNoProgram is in the error where the server's installation lacks a client program:
// fetched ones have the server alone.
var ErrNoProgram = errors.New("the installation lacks the program")

// BaseBackup takes a backup of the running server with pg_basebackup, into a folder that
// StartPostgres takes as PostgresOptions.Dir. As with every base backup, replication slots
// are not in it. With standby, a server that starts on it follows the one that
// primary_conninfo in its settings names, until it is promoted.
func (p *Postgres) BaseBackup(ctx context.Context, dir string, standby bool) error {
	program := filepath.Join(p.BinDir, "pg_basebackup")
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("pg_basebackup of PostgreSQL %s: %w", p.Version, ErrNoProgram)
	}
	data := filepath.Join(dir, "data")
	for _, folder := range []string{data, filepath.Join(dir, "socket")} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return err
		}
		if err := p.user.own(folder); err != nil {
			return err
		}
	}
	err := p.command("pg_basebackup", "-D", data, "-d", p.DSN(), "-X", "stream", "-c", "fast", "--no-sync").run(ctx)
	if err != nil {
		return fmt.Errorf("base backup of PostgreSQL %s: %w", p.Version, err)
	}
	if !standby {
		return nil
	}
	signal := filepath.Join(data, "standby.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		return err
	}
	return p.user.own(signal)
}
