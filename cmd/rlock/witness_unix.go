//go:build unix

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// witnessName is the argv[0] of the witness.
const witnessName = "lock-witness"

// runWitness is the main function of a process in the command's group. It tells rlock, byte by byte, which signals the group gets, and
// answers a byte from rlock when it has told of all so far. It ends with rlock; the guard kills it earlier.
func runWitness([]string) int {
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, catchable()...)
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
			for len(signals) > 0 {
				tell(<-signals)
			}
			tell(witnessAnswers)
		}
	}
}

// startWitness starts a witness in a group. asks and tells are its ends of pipes to rlock.
func startWitness(group int, asks, tells *os.File) *exec.Cmd {
	path, err := self()
	if err != nil {
		return nil
	}
	w := &exec.Cmd{Path: path, Args: []string{witnessName}, Stdin: asks, Stdout: tells, SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pgid: group}}
	dieWithParent(w.SysProcAttr, syscall.SIGKILL)
	if w.Start() != nil { // the command has ended, or there are too many processes: signals are passed on at once
		return nil
	}
	return w
}
