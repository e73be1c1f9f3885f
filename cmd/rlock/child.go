package main

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"
)

// child is the command that runs inside the lock. It leads a process group of its own, so that a signal reaches all that it has started,
// and so that nobody but us continues it when it is stopped.
type child struct {
	cmd   *exec.Cmd
	job   job
	stops chan syscall.Signal // the signal that has stopped the command
	ended chan struct{}       // closed when the command has ended

	// These are set when ended is closed.
	code      int
	interrupt func() // does to us what SIGINT has done to the command; nil if it did not
}

// start runs a command with our own standard streams.
func (p *program) start(path string, argv, env []string) (*child, error) {
	c := &child{
		cmd:   &exec.Cmd{Path: path, Args: argv, Env: env, Stdin: p.in, Stdout: p.out, Stderr: p.err},
		stops: make(chan syscall.Signal, 1),
		ended: make(chan struct{}),
	}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{}
	c.prepare()
	dieWithParent(c.cmd.SysProcAttr, syscall.SIGTERM)
	if err := c.cmd.Start(); err != nil {
		c.leave()
		return nil, err
	}
	c.begin()
	go c.wait() // ends with the command
	return c, nil
}

// keeping is what follow has to know of the lock.
type keeping struct {
	held  context.Context
	grace time.Duration
	asked <-chan struct{} // closed when somebody waits for the lock; nil: that is no concern
	// yield tells that somebody waits, and returns the signal for that. It does not wait.
	yield func() syscall.Signal
	// sure reports whether the lock is still held, after a time in which this process was stopped. It returns when that is known.
	sure func() bool
	// lost tells that the command is being stopped. It does not wait.
	lost func()
}

// follow waits for the command's end and returns its exit code. It passes signals on, and stops and continues together with the command.
// When the lock is lost it ends the command, after grace by force, before it does anything else.
func (c *child) follow(k keeping, signals <-chan os.Signal) int {
	defer c.leave()
	var force <-chan time.Time
	lost, asked := k.held.Done(), k.asked
	end := func() {
		lost = nil
		c.end()
		force = time.After(k.grace)
		k.lost()
	}
	goOn := func() { // after a stop
		switch {
		case lost == nil:
			c.end()
		case k.sure():
			c.resume()
		default:
			end()
		}
	}
	for {
		select {
		case <-c.ended:
			if force != nil || k.held.Err() != nil {
				c.signal(syscall.SIGKILL) // what the command left behind may not go on either
			}
			return c.code
		case s := <-signals:
			n, ok := s.(syscall.Signal)
			switch {
			case !ok:
			case !slices.Contains(jobSignals(), s):
				c.signal(n)
			case c.asked(n):
				goOn()
			}
		case s := <-c.stops:
			if lost == nil || c.stopped(s) {
				goOn()
			}
		case <-asked:
			asked = nil
			if lost != nil {
				c.signal(k.yield())
			}
		case <-lost:
			end()
		case <-force:
			c.signal(syscall.SIGKILL)
		}
	}
}

func exitCode(state *os.ProcessState) int {
	if s, ok := state.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return exitSignal + int(s.Signal())
	}
	return state.ExitCode()
}
