package main

import "syscall"

// dieWithParent makes the kernel send sig to the child when this process is killed: no command goes on without its guard, and no server
// without its demo.
func dieWithParent(a *syscall.SysProcAttr, sig syscall.Signal) { a.Pdeathsig = sig }
