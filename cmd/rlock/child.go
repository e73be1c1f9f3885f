package main

import (
	"os"
	"os/exec"
	"syscall"
	"time"
)

// child is the command that runs inside the lock.
type child struct {
	cmd *exec.Cmd
	// group says that the command leads a process group of its own, which gets its signals. Not so at
	// a terminal, where such a group would be in the background and could not read; there the
	// terminal sends Ctrl-C to the command itself.
	group bool
	ended chan struct{} // closed when the command has ended
}

// start runs a command with our own standard streams.
func (p *program) start(path string, argv, env []string) (*child, error) {
	c := &child{
		cmd:   &exec.Cmd{Path: path, Args: argv, Env: env, Stdin: p.in, Stdout: p.out, Stderr: p.err},
		group: !isTerminal(p.in),
		ended: make(chan struct{}),
	}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{}
	c.ownGroup()
	dieWithParent(c.cmd.SysProcAttr, syscall.SIGTERM)
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // ends with the command
		defer close(c.ended)
		_ = c.cmd.Wait() // the state tells all
	}()
	return c, nil
}

// follow waits for the command's end and returns its exit code. It passes signals on; when lost is
// closed it calls onLost and ends the command, after grace by force.
func (c *child) follow(lost <-chan struct{}, signals <-chan os.Signal, grace time.Duration, onLost func()) int {
	var force <-chan time.Time
	for {
		select {
		case <-c.ended:
			if force != nil {
				c.signal(syscall.SIGKILL) // what the command left behind may not go on either
			}
			return exitCode(c.cmd.ProcessState)
		case s := <-signals:
			n, ok := s.(syscall.Signal)
			if byTerminal := n == syscall.SIGINT || n == syscall.SIGQUIT; ok && (c.group || !byTerminal) {
				c.signal(n)
			}
		case <-lost:
			lost = nil
			onLost()
			c.signal(syscall.SIGTERM)
			force = time.After(grace)
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
