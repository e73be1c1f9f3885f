//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// job connects the command's process group with the terminal. The command becomes the foreground job if both ends of its pipeline are the
// terminal. Otherwise it gets the foreground only when it stops to read from the terminal, so that the other commands of a pipeline keep it
// as long as they can.
type job struct {
	tty    int  // the controlling terminal; -1 if there is none
	own    int  // our own process group
	halted bool // the command was stopped and not yet continued
}

// stopTime bounds how long the kernel may take to stop a process.
const stopTime = time.Second

// endTime bounds how long a signal may take to end this process.
const endTime = 200 * time.Millisecond

// foreground returns the terminal's foreground process group, 0 if unknown.
func (j *job) foreground() int {
	if j.tty < 0 {
		return 0
	}
	return foregroundOf(j.tty)
}

// foregroundOf returns 0 if the file is not our controlling terminal.
func foregroundOf(fd int) int {
	pgrp, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return pgrp
}

// give moves the foreground from one process group to another, if from has it now.
func (j *job) give(from, to int) {
	if j.foreground() == from {
		_ = unix.IoctlSetPointerInt(j.tty, unix.TIOCSPGRP, to)
	}
}

func (c *child) group() int { return c.cmd.Process.Pid }

func (c *child) prepare() {
	c.cmd.SysProcAttr.Setpgid = true
	c.job = job{own: syscall.Getpgrp()}
	var err error
	if c.job.tty, err = unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err != nil {
		c.job.tty = -1
	}
}

// begin puts the command into the foreground.
func (c *child) begin() {
	if c.job.tty < 0 {
		return
	}
	signal.Ignore(syscall.SIGTTOU) // not earlier, or the command would inherit it; from now on we take the foreground back from the background
	whole := true
	for _, end := range []any{c.cmd.Stdin, c.cmd.Stdout} {
		f, ok := end.(*os.File)
		whole = whole && ok && foregroundOf(int(f.Fd())) == c.job.own
	}
	if whole {
		c.job.give(c.job.own, c.group())
	}
}

// leave takes the foreground back: a script that called rlock may need it.
func (c *child) leave() {
	if c.job.tty >= 0 {
		if c.cmd.Process != nil {
			c.job.give(c.group(), c.job.own)
		}
		_ = unix.Close(c.job.tty)
	}
}

// wait reports each stop of the command, and its end.
func (c *child) wait() {
	defer close(c.ended)
	for {
		var status syscall.WaitStatus
		switch _, err := syscall.Wait4(c.group(), &status, syscall.WUNTRACED, nil); {
		case err == syscall.EINTR:
		case err != nil: // only this goroutine waits for the command
			c.code = exitInternal
			return
		case status.Stopped():
			select {
			case c.stops <- status.StopSignal():
			default: // the previous stop has not been read yet
			}
		case status.Signaled():
			c.code = exitSignal + int(status.Signal())
			if status.Signal() == syscall.SIGINT {
				whom := syscall.Getpid()
				if c.job.foreground() == c.group() {
					whom = 0
				}
				c.interrupt = func() { interrupted(whom) }
			}
			return
		default:
			c.code = status.ExitStatus()
			return
		}
	}
}

// interrupted ends this process by SIGINT: a shell script would continue after a mere exit code. If the terminal sent SIGINT only to the
// command, which had the foreground, whom is 0: our whole group gets it, as it would have without rlock.
func interrupted(whom int) {
	if syscall.Getpid() == 1 {
		return
	}
	signal.Reset(syscall.SIGINT)
	_ = syscall.Kill(whom, syscall.SIGINT)
	<-time.After(endTime) // SIGINT may be ignored: then return
}

// signal sends a signal to the command's group. It does no harm if the group is gone.
func (c *child) signal(sig syscall.Signal) { _ = syscall.Kill(-c.group(), sig) }

// end terminates the command, even if it is stopped.
func (c *child) end() {
	c.signal(syscall.SIGTERM)
	c.signal(syscall.SIGCONT)
}

// jobSignals are the signals by which a shell stops and continues a job.
func jobSignals() []os.Signal { return []os.Signal{syscall.SIGTSTP, syscall.SIGCONT} }

func continues(s os.Signal) bool { return s == syscall.SIGCONT }

// stopSelf stops this process as Ctrl-Z stops a program without a handler.
func stopSelf() {
	j := job{own: syscall.Getpgrp()}
	j.stop(syscall.Getpid())
}

// halt stops the whole group; SIGSTOP cannot be ignored.
func (c *child) halt() {
	c.signal(syscall.SIGSTOP)
	if !c.job.halted {
		select {
		case <-c.stops:
		case <-c.ended:
		case <-time.After(stopTime):
		}
	}
	c.job.halted = true
}

// resume continues the command, in the foreground if we have it.
func (c *child) resume() {
	c.job.halted = false
	c.job.give(c.job.own, c.group())
	c.signal(syscall.SIGCONT)
}

// asked handles one of the jobSignals. For a stop it stops the command, then this process, and returns once continued. It reports whether
// to continue the command.
func (c *child) asked(sig syscall.Signal) bool {
	if sig == syscall.SIGTSTP {
		c.halt()
		c.job.stop(syscall.Getpid())
	}
	return c.job.halted
}

// stopped handles a stop of the command. At a terminal it also stops this process and its group, unless the command only wants the
// foreground. It returns once continued, and reports whether to continue the command.
func (c *child) stopped(sig syscall.Signal) bool {
	foreground, wants := c.job.foreground(), sig == syscall.SIGTTIN || sig == syscall.SIGTTOU
	switch {
	case wants && (foreground == c.job.own || foreground == c.group()): // the latter: it asked before begin gave it the foreground
		c.job.halted = true
	case wants, foreground == c.group():
		c.job.halted = true
		c.halt()
		c.job.give(c.group(), c.job.own)
		if !c.job.stop(0) && wants { // nobody can give it the foreground: hang up, as the kernel does with an orphaned group
			c.signal(syscall.SIGHUP)
		}
	default:
		return false // stopped on purpose by somebody who will continue it
	}
	return true
}

// stop stops a process (0: our group) and returns once it is continued. It reports false, and stops nothing, without a shell to continue
// it: when our group started the session.
func (j *job) stop(pid int) bool {
	session, err := unix.Getsid(0)
	if err != nil {
		return false
	}
	if leads, err := unix.Getpgid(session); err != nil || leads == j.own {
		return false
	}
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	select { // some of our threads may still run for a moment
	case <-continued:
	case <-time.After(stopTime):
	}
	return true
}
