//go:build unix && !linux

package demo

import "syscall"

// dieWithParent does nothing: only Linux has a parent-death signal. The relay's
// pid file stands where devstack's janitor looks.
func dieWithParent(*syscall.SysProcAttr) {}
