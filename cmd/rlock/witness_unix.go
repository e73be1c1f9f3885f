//go:build unix

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
)

// witnessName is the argv[0] of the witness.
const witnessName = "lock-witness"

// runWitness is the main function of a process that joins the command's group, its argument. It tells rlock, byte by byte, which signals
// the group gets, and answers a byte from rlock when it has told of all so far. It ends with rlock; the guard kills it earlier.
func runWitness(args []string) int {
	if len(args) != 1 {
		return exitUsage
	}
	group, err := strconv.Atoi(args[0])
	if err != nil {
		return exitUsage
	}
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, catchable()...)
	if syscall.Setpgid(0, group) != nil { // the command has ended
		return exitInternal
	}
	setName(witnessName)
	asked := make(chan struct{})
	go func() { // ends with rlock
		defer close(asked)
		for one := make([]byte, 1); ; asked <- struct{}{} {
			if _, err := os.Stdin.Read(one); err != nil {
				return
			}
		}
	}()
	// settle returns when all signals so far are in the channel: the runtime passes them on in the order of their numbers, and the one that
	// the witness sends itself has a higher one than those that end a service.
	marks := make(chan os.Signal, 1)
	signal.Notify(marks, syscall.SIGCONT)
	settle := func() {
		select {
		case <-marks: // that of somebody who continued the group
		default:
		}
		if syscall.Kill(syscall.Getpid(), syscall.SIGCONT) == nil {
			<-marks
		}
	}
	tell := func(s os.Signal) {
		if n, ok := s.(syscall.Signal); ok {
			_, _ = os.Stdout.Write([]byte{byte(n)}) // or rlock has ended
		}
	}
	for {
		select {
		case s := <-signals:
			tell(s)
		case _, ok := <-asked:
			if !ok {
				return 0
			}
			settle()
			for len(signals) > 0 {
				tell(<-signals)
			}
			tell(witnessAnswers)
		}
	}
}

// startWitness starts a witness for a group. asks and tells are its ends of pipes to rlock. It joins the group by itself, when it catches
// signals: one that stopped it before its exec, as for a read from the terminal in the background, would stop us here.
func startWitness(group int, asks, tells *os.File) *exec.Cmd {
	path, err := self()
	if err != nil {
		return nil
	}
	w := &exec.Cmd{Path: path, Args: []string{witnessName, strconv.Itoa(group)}, Stdin: asks, Stdout: tells, SysProcAttr: &syscall.SysProcAttr{}}
	dieWithParent(w.SysProcAttr, syscall.SIGKILL)
	if w.Start() != nil { // there are too many processes: signals are passed on at once
		return nil
	}
	return w
}
