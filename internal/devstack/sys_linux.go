package devstack

import "syscall"

// dieWithParent asks the kernel to send sig to the child when the thread that
// started it ends; process.go keeps that thread alive as long as the child.
func dieWithParent(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }
