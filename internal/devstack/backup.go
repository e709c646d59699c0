package devstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
)

// BaseBackup takes a backup of the running server into a folder that StartPostgres takes
// as PostgresOptions.Dir: with pg_basebackup where the installation has it, else by
// PostgreSQL's functions for that and a copy of the files. As with every base backup,
// replication slots are not in it. With standby, a server that starts on it follows the
// one that primary_conninfo in its settings names, until it is promoted.
func (p *Postgres) BaseBackup(ctx context.Context, dir string, standby bool) error {
	data := filepath.Join(dir, "data")
	for _, folder := range []string{data, filepath.Join(dir, "socket")} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return err
		}
		if err := p.user.own(folder); err != nil {
			return err
		}
	}
	backup := p.copyBackup
	if _, err := exec.LookPath(filepath.Join(p.BinDir, "pg_basebackup")); err == nil {
		backup = func(ctx context.Context, data string) error {
			return p.command("pg_basebackup", "-D", data, "-d", p.DSN(), "-X", "stream", "-c", "fast", "--no-sync").run(ctx)
		}
	}
	if err := backup(ctx, data); err != nil {
		return fmt.Errorf("base backup of PostgreSQL %s: %w", p.Version, err)
	}
	if !standby {
		return nil
	}
	return p.put(filepath.Join(data, "standby.signal"), nil)
}

// put writes a file for the server.
func (p *Postgres) put(path string, content []byte) error {
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return err
	}
	return p.user.own(path)
}

// copyBackup is a base backup without a program. The WAL is copied last: the end of the
// backup has switched to another segment, so that all that is needed is there.
func (p *Postgres) copyBackup(ctx context.Context, data string) error {
	conn, err := pgx.Connect(ctx, p.DSN())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	begin, end := "SELECT pg_backup_start('devstack', true)", "SELECT labelfile FROM pg_backup_stop(false)"
	if majorNumber(p.Version) < 15 {
		begin, end = "SELECT pg_start_backup('devstack', true, false)", "SELECT labelfile FROM pg_stop_backup(false, false)"
	}
	if _, err := conn.Exec(ctx, begin); err != nil {
		return err
	}
	if err := p.copyTree(p.DataDir(), data, func(path string) bool {
		return strings.HasPrefix(path, "pg_wal/") || strings.HasPrefix(path, "pg_replslot/") || strings.HasPrefix(path, "postmaster.")
	}); err != nil {
		return err
	}
	var label string
	if err := conn.QueryRow(ctx, end).Scan(&label); err != nil {
		return err
	}
	if err := p.put(filepath.Join(data, "backup_label"), []byte(label)); err != nil {
		return err
	}
	return p.copyTree(filepath.Join(p.DataDir(), "pg_wal"), filepath.Join(data, "pg_wal"), func(string) bool { return false })
}

// copyTree copies folders and files; what vanishes meanwhile is not missed. skip gets paths
// below from.
func (p *Postgres) copyTree(from, to string, skip func(path string) bool) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		below, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, below)
		switch {
		case skip(filepath.ToSlash(below)):
			return nil
		case d.IsDir():
			if err := os.MkdirAll(target, 0o700); err != nil {
				return err
			}
			return p.user.own(target)
		case !d.Type().IsRegular():
			return nil
		}
		return p.copyFile(path, target)
	})
}

func (p *Postgres) copyFile(from, to string) error {
	src, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close(), p.user.own(to))
}
