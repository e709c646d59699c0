//go:build unix

package main

import (
	"os"
	"syscall"
	"testing"
)

// chownLike gives path the owner of another: the server may run as another user.
func chownLike(t *testing.T, path, other string) {
	t.Helper()
	info, err := os.Stat(other)
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		if err := os.Chown(path, int(s.Uid), int(s.Gid)); err != nil {
			t.Fatal(err)
		}
	}
}
