//go:build !unix

package main

import (
	"os"
	"os/exec"
	"syscall"
	"time"
)

// helpers are the main functions of this program under other names: none here.
var helpers map[string]func([]string) int

// job has no job control: the console sends Ctrl-C to the command itself.
type job struct{ cmd *exec.Cmd }

func (c *child) begin(p *program, e *errand, env []string, _ time.Time) error {
	c.job.cmd = &exec.Cmd{Path: e.path, Args: e.argv, Env: env, Stdin: p.in, Stdout: p.out, Stderr: p.err}
	if err := c.job.cmd.Start(); err != nil {
		return err
	}
	go func() { // ends with the command
		defer close(c.ended)
		_ = c.job.cmd.Wait() // ProcessState has the result
		c.code = c.job.cmd.ProcessState.ExitCode()
	}()
	return nil
}

func (c *child) trust(time.Time) {}

// witness is nil: the group's signals are unknown.
func (c *child) witness() func() { return nil }

func (c *child) prompt(syscall.Signal) bool { return true }

// signal kills the command: there is no gentler way.
func (c *child) signal(sig syscall.Signal) {
	if sig != syscall.SIGINT && sig != syscall.SIGQUIT { // the console sends these to the command itself
		c.kill()
	}
}

func (c *child) kill() { _ = c.job.cmd.Process.Kill() }

func (c *child) end() { c.signal(syscall.SIGTERM) }

func (c *child) leave() {}

func jobSignals() []os.Signal { return nil }

func continues(os.Signal) bool { return true }

func stopSelf() {}

func (c *child) resume() {}

func (c *child) asked(syscall.Signal) bool { return false }

func (c *child) stopped(syscall.Signal) bool { return false }
