package demo

import "syscall"

// dieWithParent asks the kernel to kill the relay when this process is killed.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
