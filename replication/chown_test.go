//go:build unix

package replication

import (
	"os"
	"syscall"
)

// chownLike gives path the owner of info: the server may run as another user.
func chownLike(path string, info os.FileInfo) error {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return os.Chown(path, int(s.Uid), int(s.Gid))
}
