//go:build !unix

package main

import (
	"os"
	"syscall"
)

// job is empty here: the console sends Ctrl-C to the command itself, and there is no job control.
type job struct{}

func (c *child) prepare() {}

func (c *child) begin() {}

func (c *child) wait() {
	defer close(c.ended)
	_ = c.cmd.Wait() // ProcessState has the result
	c.code = c.cmd.ProcessState.ExitCode()
}

// signal kills the command: there is no gentler way.
func (c *child) signal(sig syscall.Signal) {
	if sig != syscall.SIGINT && sig != syscall.SIGQUIT { // the console sends these to the command itself
		_ = c.cmd.Process.Kill()
	}
}

func (c *child) end() { c.signal(syscall.SIGTERM) }

func (c *child) leave() {}

func jobSignals() []os.Signal { return nil }

func continues(os.Signal) bool { return true }

func stopSelf() {}

func (c *child) resume() {}

func (c *child) asked(syscall.Signal) bool { return false }

func (c *child) stopped(syscall.Signal) bool { return false }
