//go:build unix

package main

import "syscall"

func (c *child) ownGroup() { c.cmd.SysProcAttr.Setpgid = c.group }

// signal sends a signal to the command, and to its group if it has one. It does no harm if they are
// gone.
func (c *child) signal(sig syscall.Signal) {
	if c.group {
		_ = syscall.Kill(-c.cmd.Process.Pid, sig)
	} else {
		_ = c.cmd.Process.Signal(sig)
	}
}
