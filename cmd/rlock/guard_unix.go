//go:build unix

package main

import (
	"bytes"
	"encoding/gob"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The guard is the command's parent, a process between it and "rlock run". It outlives a kill -9 of rlock: it then ends the command, its
// group and, on Linux, whatever else they started, while the lock still keeps others out. A pipe tells it of rlock's end, so it needs no
// process of another group or a kill(1) by name to spare it: it has its own group, and neither of its names contains "rlock".

// guardName is the guard's argv[0].
const guardName = "lock-guard"

// helpers are the main functions of this program under other names.
var helpers = map[string]func(args []string) int{guardName: runGuard, witnessName: runWitness}

// order is what rlock asks of the guard. The first one starts the command.
type order struct {
	Path string
	Argv []string
	// KillAfter is the time from SIGTERM to SIGKILL when rlock was killed.
	KillAfter time.Duration
	WaitGroup bool // the command has ended only when its descendants have

	Trusted time.Duration // if not 0, until when the lock is trusted, by bootClock
	Lost    bool          // it is lost, and rlock ends the command
	Halted  bool          // rlock stops, and has stopped the command
	Resumed bool          // both go on
	Kill    bool          // kill the command and all that it started
	Leave   bool          // end, and leave alone what is left
}

// report is what the guard tells rlock. The first one has Pid or a failure to start.
type report struct {
	Pid     int
	Failure string
	Errno   syscall.Errno // of the failure

	Changed bool // Status is the command's
	Status  syscall.WaitStatus
	Gone    bool // all that the guard can see of the command has ended
}

// startError is the error of a command that the guard could not start.
type startError struct {
	text  string
	errno syscall.Errno
}

func (f startError) Error() string { return f.text }
func (f startError) Unwrap() error { return f.errno }

// childState is a change of a child's state.
type childState struct {
	pid    int
	status syscall.WaitStatus
}

// guard is the state of a guard process.
type guard struct {
	reports *gob.Encoder
	command *exec.Cmd
	witness *exec.Cmd // nil if there is none
	first   order
	trusted time.Duration // see order
	ended   bool          // the command itself
	alone   bool          // rlock was killed
	halted  bool          // see order
	ending  bool          // the lock is lost, and rlock ends the command, or the guard, if rlock is stopped
	killing bool
	killAt  time.Duration   // if alone or ending, by bootClock
	changes chan childState // closed when no children are left; then nil
}

// runGuard is the guard's main function. Its standard files are the command's, until it has started that. Its arguments are the files for
// orders and reports and those of the witness, whose numbers were free: the command inherits whatever else rlock has inherited.
func runGuard(args []string) int {
	var files []*os.File
	for _, arg := range args {
		fd, err := strconv.Atoi(arg)
		if err != nil {
			return exitUsage
		}
		syscall.CloseOnExec(fd)
		files = append(files, os.NewFile(uintptr(fd), ""))
	}
	if len(files) != 4 {
		return exitUsage
	}
	// Not Ignore: the command would inherit that.
	signal.Notify(make(chan os.Signal, 1), catchable()...)
	adoptOrphans()
	setName(guardName)
	orders, g := gob.NewDecoder(files[0]), &guard{reports: gob.NewEncoder(files[1])}
	if orders.Decode(&g.first) != nil {
		return exitInternal
	}
	if err := g.start(); err != nil {
		r := report{Failure: err.Error()}
		_ = errors.As(err, &r.Errno)
		_ = g.reports.Encode(r)
		return exitInternal
	}
	g.witness = startWitness(g.group(), files[2], files[3])
	_, _ = files[2].Close(), files[3].Close()
	given := make(chan order)
	go func() { // ends with rlock
		defer close(given)
		for {
			var o order
			if orders.Decode(&o) != nil {
				return
			}
			given <- o
		}
	}()
	g.changes = make(chan childState)
	go g.watch() // ends with the last child
	return g.run(given)
}

// catchable returns the signals that end or stop a process without a handler, and come from others.
func catchable() (all []os.Signal) {
	for s := syscall.SIGHUP; s < 32; s++ {
		switch s {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGCONT, syscall.SIGURG,
			syscall.SIGILL, syscall.SIGTRAP, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGSEGV:
		default:
			if !signal.Ignored(s) { // so does the command
				all = append(all, s)
			}
		}
	}
	return all
}

func (g *guard) start() error {
	begin := func(path string, argv []string) error {
		g.command = &exec.Cmd{
			Path: path, Args: argv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
		}
		dieWithParent(g.command.SysProcAttr, syscall.SIGKILL) // if somebody kills the guard
		return g.command.Start()
	}
	err := begin(g.first.Path, g.first.Argv)
	if errors.Is(err, syscall.ENOEXEC) && isText(g.first.Path) { // a script without #!: what execvp(3) does with it
		err = begin("/bin/sh", append([]string{"sh", g.first.Path}, g.first.Argv[1:]...))
	}
	if err != nil {
		return err
	}
	closeStandardFiles()
	g.trusted = g.first.Trusted
	_ = g.reports.Encode(report{Pid: g.command.Process.Pid}) // or rlock was killed meanwhile: run will see it
	return nil
}

// closeStandardFiles makes the command the only one that keeps its pipes open.
func closeStandardFiles() {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return // rlock has them open as well
	}
	for fd := range 3 {
		_ = duplicate(int(null.Fd()), fd)
	}
	_ = null.Close()
}

// isText reports whether a file may be a script: the first line of a program has a zero byte.
func isText(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	head := make([]byte, 128)
	n, _ := f.Read(head)
	line, _, _ := bytes.Cut(head[:n], []byte("\n"))
	return bytes.IndexByte(line, 0) < 0
}

// watch reaps all children, adopted ones as well: rlock may be the init of a container.
func (g *guard) watch() {
	defer close(g.changes)
	for {
		var c childState
		var err error
		switch c.pid, err = syscall.Wait4(-1, &c.status, syscall.WUNTRACED, nil); err {
		case nil:
			g.changes <- c
		case syscall.EINTR:
		default: // no more children
			return
		}
	}
}

// Pauses between two looks at what has no event: the time, a group without children of ours, and descendants that escape SIGKILL by a fork.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)

// lateTime is how long rlock may take to end the command after the end of the lease, before it counts as stopped.
const lateTime = time.Second

func (g *guard) run(given <-chan order) int {
	pause, gone := firstPause, false
	var look, late <-chan time.Time
	for {
		if !gone && g.changes == nil && g.groupGone() {
			gone = true
			_ = g.reports.Encode(report{Gone: true})
		}
		if g.alone && gone {
			return 0
		}
		if look == nil && !gone && (g.alone || g.ending || g.killing || g.changes == nil) {
			look = time.After(pause)
		}
		if late == nil && !gone && g.relies() {
			late = time.After(max(g.trusted+lateTime-bootClock(), 0))
		}
		select {
		case c, ok := <-g.changes:
			switch {
			case !ok:
				g.changes = nil
			case g.witness != nil && c.pid == g.witness.Process.Pid:
				if !c.status.Stopped() {
					g.witness = nil
				}
			case c.pid == g.group():
				_ = g.reports.Encode(report{Changed: true, Status: c.status})
				if !c.status.Stopped() {
					g.ended = true
					g.dismissWitness()
				}
			}
		case o, ok := <-given:
			switch {
			case !ok:
				given = nil
				g.takeOver()
			case o.Leave:
				g.reapWitness()
				return 0
			case o.Kill:
				g.killing = true
			case o.Trusted != 0:
				g.trusted = o.Trusted
			case o.Lost && !g.ending:
				g.ending, g.killAt = true, bootClock()+g.first.KillAfter+lateTime // if rlock does not
			case o.Halted, o.Resumed:
				g.halted = o.Halted
			}
		case <-look:
			look = nil
		case <-late:
			late = nil
			if g.relies() && bootClock() >= g.trusted+lateTime {
				g.stepIn()
			}
		}
		if (g.alone || g.ending) && (g.ended && !g.first.WaitGroup || bootClock() >= g.killAt) {
			g.killing = true
		}
		if g.killing && !gone {
			g.signal(syscall.SIGKILL)
			pause = min(2*pause, lastPause)
		}
	}
}

func (g *guard) dismissWitness() {
	if g.witness != nil {
		_ = g.witness.Process.Kill() // or it has ended
	}
}

// reapWitness leaves no zombie to an init that does not expect it.
func (g *guard) reapWitness() {
	g.dismissWitness()
	for end := time.After(killTime); g.witness != nil && g.changes != nil; {
		select {
		case c, ok := <-g.changes:
			if !ok || c.pid == g.witness.Process.Pid && !c.status.Stopped() {
				return
			}
		case <-end:
			return
		}
	}
}

func (g *guard) group() int { return g.command.Process.Pid }

func (g *guard) groupGone() bool { return syscall.Kill(-g.group(), 0) == syscall.ESRCH }

// takeOver asks the command to end, since rlock was killed. SIGKILL follows while a quarter of the lease is left: killing takes its time.
func (g *guard) takeOver() {
	g.alone = true
	left := g.trusted - bootClock()
	g.killAt = bootClock() + min(g.first.KillAfter, left*3/4)
	if left <= 0 {
		return // SIGCONT would let a stopped command work on
	}
	g.signal(syscall.SIGTERM)
	g.signal(syscall.SIGCONT)
}

// relies reports whether rlock has to end the command when the lease does.
func (g *guard) relies() bool {
	return !g.alone && !g.ending && !g.halted && (!g.ended || g.first.WaitGroup)
}

// stepIn ends the command in place of an rlock that is stopped.
func (g *guard) stepIn() {
	g.ending, g.killAt = true, bootClock()+g.first.KillAfter
	g.signal(syscall.SIGTERM)
	g.signal(syscall.SIGCONT)
}

// signal sends a signal to the command's group and to all other descendants.
func (g *guard) signal(s syscall.Signal) {
	_ = syscall.Kill(-g.group(), s)
	for _, pid := range descendants() {
		if group, err := unix.Getpgid(pid); err == nil && group != g.group() {
			_ = syscall.Kill(pid, s)
		}
	}
}
