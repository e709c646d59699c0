package contender

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/postrider/postrider/bench/rig"
)

// Names of what publishes nothing: it shows what PostgreSQL can give.
const (
	Peek        = "peek"
	Recvlogical = "pg_recvlogical"
)

// PeekSQL has the server decode everything up to $2 from slot $1 and throw it away: no network, no reader. $3 is the publication.
const PeekSQL = `SELECT count(*) FROM pg_logical_slot_peek_binary_changes($1, $2::pg_lsn, NULL, 'proto_version', '1', 'publication_names', $3)`

// StartRecvlogical reads the job's slot to the position end, over the network, and throws it away.
func StartRecvlogical(job Job, end string) (*rig.Process, error) {
	bin, err := findRecvlogical(job.Rig.Postgres().BinDir)
	if err != nil {
		return nil, err
	}
	return rig.Start(rig.Command{
		Path: bin, LogFile: job.LogFile,
		Args: []string{
			"-d", job.Rig.DSN(), "-S", job.Slot, "--start", "--no-loop", "--endpos", end, "-f", os.DevNull,
			"-o", "proto_version=1", "-o", "publication_names=" + job.Publication,
		},
	})
}

// findRecvlogical: fetched servers come without it.
func findRecvlogical(binDir string) (string, error) {
	if bin := filepath.Join(binDir, Recvlogical); isFile(bin) {
		return bin, nil
	}
	bin, err := exec.LookPath(Recvlogical)
	if err != nil {
		return "", fmt.Errorf("%s is not in %s: %w", Recvlogical, binDir, err)
	}
	return bin, nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
