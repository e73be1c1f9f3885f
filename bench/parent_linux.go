package main

import "syscall"

// dieWithParent makes the kernel kill the child with this process.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
