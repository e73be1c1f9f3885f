package main

import "syscall"

// dieWithParent makes the kernel kill the child with this process, so that nothing goes on without it.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
