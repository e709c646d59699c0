//go:build linux || darwin

package doctor

import "golang.org/x/sys/unix"

// diskSpace gives what may still be written to the file system of a folder, and its size.
func diskSpace(dir string) (free, total int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, 0, err
	}
	block := int64(s.Bsize) //nolint:unconvert // another type on other systems
	return int64(s.Bavail) * block, int64(s.Blocks) * block, nil
}
