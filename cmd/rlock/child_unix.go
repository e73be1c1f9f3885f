//go:build unix

package main

import (
	"encoding/gob"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// job connects the command's process group with the terminal. The command becomes the foreground job if both ends of its pipeline are the
// terminal. Otherwise it gets the foreground only when it stops to read from the terminal, so that the other commands of a pipeline keep it
// as long as they can.
type job struct {
	guard   *exec.Cmd
	orders  *os.File // to the guard
	tell    *gob.Encoder
	reports *os.File
	asks    *os.File      // to the witness
	tells   *os.File      // from the witness
	pid     int           // of the command, and its group; 0 before its start
	whole   bool          // -wait-group
	gone    chan struct{} // closed when all that the command started has ended, or the guard

	tty    int  // the controlling terminal; -1 if there is none
	own    int  // our own process group
	halted bool // the command was stopped and not yet continued
}

// killTime bounds how long the guard and the kernel may take to kill a process: the machine may be busy, and the process in the middle of a
// call to a disk or a file server.
const killTime = 5 * time.Second

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

func (c *child) group() int { return c.job.pid }

// begin starts the guard, lets it start the command, and puts the command into the foreground.
func (c *child) begin(p *program, e *errand, env []string, until time.Time) error {
	j := &c.job
	j.own, j.gone = syscall.Getpgrp(), make(chan struct{})
	var err error
	if j.tty, err = unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err != nil {
		j.tty = -1
	}
	if err := j.startGuard(p, env); err != nil {
		return guardError{err}
	}
	_ = j.tell.Encode(order{Path: e.path, Argv: e.argv, KillAfter: e.killAfter, WaitGroup: e.waitGroup, Trusted: onBootClock(until)})
	said := gob.NewDecoder(j.reports)
	var r report
	switch err := said.Decode(&r); {
	case err != nil:
		return guardError{err}
	case r.Failure != "":
		return startError{r.Failure, r.Errno}
	}
	j.pid, j.whole = r.Pid, e.waitGroup
	if j.tty >= 0 {
		signal.Ignore(syscall.SIGTTOU) // not earlier, or the command would inherit it; from now on we take the foreground back from the background
		if foregroundOf(int(p.in.Fd())) == j.own && foregroundOf(int(p.out.Fd())) == j.own {
			j.give(j.own, c.group())
		}
	}
	go c.wait(said) // ends with the guard
	go c.hear()     // ends with the witness
	return nil
}

// self is the path of this program.
func self() (string, error) {
	if _, err := os.Stat(selfPath); err == nil {
		return selfPath, nil
	}
	return os.Executable()
}

// startGuard starts the guard, with the command's environment and standard files.
func (j *job) startGuard(p *program, env []string) error {
	path, err := self()
	if err != nil {
		return err
	}
	guard := &exec.Cmd{
		Path: path, Args: []string{guardName}, Env: env, Stdin: p.in, Stdout: p.out, Stderr: p.err,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true}, // whoever kills our group spares it
	}
	var theirs []*os.File
	pipe := func(ours **os.File, writes bool) {
		r, w, e := os.Pipe()
		if e != nil {
			err = e
			return
		}
		if writes {
			r, w = w, r
		}
		*ours, theirs = r, append(theirs, w)
		// Not ExtraFiles: these would take the place of files for the command.
		guard.Args = append(guard.Args, strconv.Itoa(int(w.Fd())))
		_, _ = unix.FcntlInt(w.Fd(), unix.F_SETFD, 0) // or the guard will say so
	}
	pipe(&j.orders, true)
	pipe(&j.reports, false)
	pipe(&j.asks, true)
	pipe(&j.tells, false)
	if err == nil {
		err = guard.Start()
	}
	for _, f := range theirs {
		_ = f.Close()
	}
	if err == nil {
		j.guard, j.tell = guard, gob.NewEncoder(j.orders)
	}
	return err
}

// onBootClock returns a time by bootClock, never 0.
func onBootClock(t time.Time) time.Duration { return max(bootClock()+time.Until(t), 1) }

// trust tells the guard until when the lock is trusted; zero: it is lost.
func (c *child) trust(until time.Time) {
	if !until.IsZero() {
		_ = c.job.tell.Encode(order{Trusted: onBootClock(until)})
	}
}

// leave takes the foreground back, since a script that called rlock may need it, and ends the guard.
func (c *child) leave() {
	j := &c.job
	if j.tty >= 0 {
		if j.pid != 0 {
			j.give(c.group(), j.own)
		}
		_ = unix.Close(j.tty)
	}
	if j.guard != nil {
		_ = j.tell.Encode(order{Leave: true})
		_ = j.guard.Process.Signal(syscall.SIGCONT) // somebody may have stopped it
		_ = j.guard.Wait()                          // its exit code tells nothing
		_, _ = j.orders.Close(), j.reports.Close()
	}
}

// wait passes on what the guard reports.
func (c *child) wait(said *gob.Decoder) {
	defer close(c.job.gone)
	ended := false
	end := func() {
		ended = true
		close(c.ended)
	}
	for {
		var r report
		switch err := said.Decode(&r); {
		case err != nil: // somebody has killed the guard, and the kernel the command
			if !ended {
				c.signal(syscall.SIGKILL)
				c.code = exitSignal + int(syscall.SIGKILL)
				end()
			}
			return
		case r.Gone:
			if !ended {
				end()
			}
			return
		case r.Status.Stopped():
			select {
			case c.stops <- r.Status.StopSignal():
			default: // the previous stop has not been read yet
			}
		default:
			c.took(r.Status)
			if !c.job.whole {
				end()
			}
		}
	}
}

// hear passes on what the witness tells.
func (c *child) hear() {
	defer close(c.told)
	for one := make([]byte, 1); ; {
		if _, err := c.job.tells.Read(one); err != nil {
			return
		}
		select {
		case c.told <- syscall.Signal(one[0]):
		default: // a flood of signals: some are passed on
		}
	}
}

// witness returns how to ask the witness.
func (c *child) witness() func() {
	return func() { _, _ = c.job.asks.Write([]byte{0}) } // or it has ended, which told says
}

// prompt reports whether a signal to this process can't be one that the group gets as well: the terminal sends it to us alone.
func (c *child) prompt(s syscall.Signal) bool {
	return c.job.tty >= 0 && (s == syscall.SIGINT || s == syscall.SIGQUIT)
}

// took notes how the command ended.
func (c *child) took(status syscall.WaitStatus) {
	c.code = status.ExitStatus()
	if status.Signaled() {
		c.code = exitSignal + int(status.Signal())
	}
	if status.Signaled() && status.Signal() == syscall.SIGINT {
		whom := syscall.Getpid()
		if c.job.foreground() == c.group() {
			whom = 0
		}
		c.interrupt = func() { interrupted(whom) }
	}
}

// kill ends all that the command has started, and waits for that.
func (c *child) kill() {
	c.signal(syscall.SIGKILL)
	_ = c.job.tell.Encode(order{Kill: true})
	select {
	case <-c.job.gone:
	case <-time.After(killTime):
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
	_ = c.job.tell.Encode(order{Lost: true})
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
	_ = c.job.tell.Encode(order{Halted: true})
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
	_ = c.job.tell.Encode(order{Resumed: true})
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
