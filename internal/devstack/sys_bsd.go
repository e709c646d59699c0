//go:build unix && !linux

package devstack

import "syscall"

// dieWithParent does nothing: only Linux has a parent-death signal. The janitor
// (workdir.go) is what stops servers there.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}
