//go:build unix

package doctor

import "golang.org/x/sys/unix"

// diskSpace gives what may still be written to the file system of a folder, and its size.
func diskSpace(dir string) (free, total int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), int64(s.Blocks) * int64(s.Bsize), nil
}
