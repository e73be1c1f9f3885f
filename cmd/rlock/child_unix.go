//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// job is what the command's process group has to do with the terminal. At a terminal the command is a job of its own in the foreground, if
// both ends of its pipeline are there. Otherwise it gets the foreground when it asks at the terminal, which stops it, so that those before
// and behind it in a pipeline keep it as long as they can.
type job struct {
	tty    int  // the controlling terminal; -1 if there is none
	own    int  // our own process group
	halted bool // the command was stopped, and not continued yet
}

// stopTime bounds how long the kernel may take to stop a process.
const stopTime = time.Second

// endTime bounds how long a signal may take to end us.
const endTime = 200 * time.Millisecond

// foreground is the process group that reads from the terminal.
func (j *job) foreground() int {
	if j.tty < 0 {
		return 0
	}
	return foregroundOf(j.tty)
}

// foregroundOf is 0 if a file is not our controlling terminal.
func foregroundOf(fd int) int {
	pgrp, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return pgrp
}

// give puts a process group into the foreground if that is now from.
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

// begin gives the command the foreground.
func (c *child) begin() {
	if c.job.tty < 0 {
		return
	}
	signal.Ignore(syscall.SIGTTOU) // not sooner, or the command would: from now on we are in the background, and take the foreground back
	whole := true
	for _, end := range []any{c.cmd.Stdin, c.cmd.Stdout} {
		f, ok := end.(*os.File)
		whole = whole && ok && foregroundOf(int(f.Fd())) == c.job.own
	}
	if whole {
		c.job.give(c.job.own, c.group())
	}
}

// leave takes the foreground back, which a script around us may need.
func (c *child) leave() {
	if c.job.tty >= 0 {
		if c.cmd.Process != nil {
			c.job.give(c.group(), c.job.own)
		}
		_ = unix.Close(c.job.tty)
	}
}

// wait notes whenever the command stops, and its end.
func (c *child) wait() {
	defer close(c.ended)
	for {
		var status syscall.WaitStatus
		switch _, err := syscall.Wait4(c.group(), &status, syscall.WUNTRACED, nil); {
		case err == syscall.EINTR:
		case err != nil: // nobody else waits for it
			c.code = exitInternal
			return
		case status.Stopped():
			select {
			case c.stops <- status.StopSignal():
			default: // nobody has looked at the one before
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

// interrupted ends this process by SIGINT, since a shell script goes on after a command that ends with a mere exit code. If the terminal sent
// it to the command alone, which had the foreground, whom is 0: all of our group get it, who would have without us.
func interrupted(whom int) {
	if syscall.Getpid() == 1 {
		return
	}
	signal.Reset(syscall.SIGINT)
	_ = syscall.Kill(whom, syscall.SIGINT)
	<-time.After(endTime) // for which we live on if we were told to ignore it
}

// signal sends a signal to the command and its group. It does no harm if they are gone.
func (c *child) signal(sig syscall.Signal) { _ = syscall.Kill(-c.group(), sig) }

// end asks the command to end, also if it is stopped.
func (c *child) end() {
	c.signal(syscall.SIGTERM)
	c.signal(syscall.SIGCONT)
}

// jobSignals are those by which a shell stops a job and continues it.
func jobSignals() []os.Signal { return []os.Signal{syscall.SIGTSTP, syscall.SIGCONT} }

func continues(s os.Signal) bool { return s == syscall.SIGCONT }

// stopSelf does what a program without a handler does on Ctrl-Z.
func stopSelf() {
	j := job{own: syscall.Getpgrp()}
	j.stop(syscall.Getpid())
}

// halt stops the whole group, whether it wants or not.
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

// resume continues the command, in the foreground if we are there.
func (c *child) resume() {
	c.job.halted = false
	c.job.give(c.job.own, c.group())
	c.signal(syscall.SIGCONT)
}

// asked takes one of the jobSignals: to stop, it stops the command first, and then ourselves. It returns when we are continued, and
// reports whether the command is to go on.
func (c *child) asked(sig syscall.Signal) bool {
	if sig == syscall.SIGTSTP {
		c.halt()
		c.job.stop(syscall.Getpid())
	}
	return c.job.halted
}

// stopped takes the news that a signal has stopped the command. At a terminal we stop, too, and those that share it, unless the command only
// wants the foreground. It returns when we are continued, and reports whether the command is to go on.
func (c *child) stopped(sig syscall.Signal) bool {
	foreground, wants := c.job.foreground(), sig == syscall.SIGTTIN || sig == syscall.SIGTTOU
	switch {
	case wants && (foreground == c.job.own || foreground == c.group()): // the second: it has asked before begin gave it that
		c.job.halted = true
	case wants, foreground == c.group():
		c.job.halted = true
		c.halt()
		c.job.give(c.group(), c.job.own)
		if !c.job.stop(0) && wants { // nobody can give it the foreground: a process that only we have stopped is told so
			c.signal(syscall.SIGHUP)
		}
	default:
		return false // somebody did that on purpose, and will continue it
	}
	return true
}

// stop stops a process, or with 0 our group, and returns when it is continued. It reports false, and stops nobody, if there is no shell that
// would continue it: then the session began with our group.
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
	select { // some of our threads may run on for a moment
	case <-continued:
	case <-time.After(stopTime):
	}
	return true
}
