package contender

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/bench/rig"
)

// buildPeer builds bench/peers/<name>/cmd as binDir/<name> and gives the versions of the modules in it, by the names that
// the report has for them.
func buildPeer(ctx context.Context, root, binDir, name string, modules map[string]string) (map[string]string, error) {
	bin := filepath.Join(binDir, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-o", bin, "./peers/"+name+"/cmd")
	cmd.Dir = filepath.Join(root, "bench")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build %s: %w\n%s", name, err, strings.TrimSpace(string(out)))
	}
	info, err := buildinfo.ReadFile(bin)
	if err != nil {
		return nil, err
	}
	versions := map[string]string{}
	for label, path := range modules {
		for _, dep := range info.Deps {
			if dep.Path == path {
				versions[label] = strings.TrimPrefix(dep.Version, "v")
			}
		}
	}
	return versions, nil
}

// peerCommand is how the peers' Go programs are called.
func peerCommand(job Job, name string, args ...string) rig.Command {
	return rig.Command{
		Path: filepath.Join(job.Rig.BinDir(), name),
		Args: append([]string{"-dsn", job.Rig.DSN(), "-brokers", strings.Join(job.Brokers, ",")}, args...),
		Dir:  job.WorkDir, LogFile: job.LogFile,
	}
}

// runSQL runs texts of several statements each, every text as one transaction.
func runSQL(ctx context.Context, dsn string, texts ...string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, text := range texts {
		if _, err := conn.Exec(ctx, text); err != nil {
			return fmt.Errorf("%w, in\n%s", err, text)
		}
	}
	return nil
}
