package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// Exit codes, in the tradition of flock(1) and timeout(1). usage.go explains them.
const (
	exitNotAcquired = 75 // the default of -E; EX_TEMPFAIL in sysexits.h: try again later
	exitFree        = 1  // the lock is not held
	exitUsage       = 2
	exitFailed      = 1 // the demo or the doctor found a fault
	exitLost        = 124
	exitInternal    = 125
	exitCannotRun   = 126
	exitNotFound    = 127
	exitSignal      = 128 // plus the signal's number
)

// guardError is the error of a guard process that does not start the command.
type guardError struct{ error }

func (e guardError) Error() string {
	return "the process that starts the command has failed: " + e.error.Error()
}
func (e guardError) Unwrap() error { return e.error }

// signalled is a context's cancellation cause when a signal asks the program to end.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return s.String() }

func (s signalled) exitCode() int {
	if n, ok := s.Signal.(syscall.Signal); ok {
		return exitSignal + int(n)
	}
	return exitInternal
}

// trimPrefix avoids a second "rlock:" in the output.
func trimPrefix(err error) string { return strings.TrimPrefix(err.Error(), "rlock: ") }

// endCode is the exit code of a command ended by a signal.
func endCode(ctx context.Context) int {
	var s signalled
	if errors.As(context.Cause(ctx), &s) {
		return s.exitCode()
	}
	return exitInternal
}

// heeded returns the signals to handle: not SIGHUP if this process ignores it, as under nohup(1). The command ignores it as well.
func heeded(signals ...os.Signal) []os.Signal {
	if signal.Ignored(syscall.SIGHUP) {
		return signals
	}
	return append(signals, syscall.SIGHUP)
}
