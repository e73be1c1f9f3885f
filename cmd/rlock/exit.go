package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// Exit codes, as users of flock(1) and timeout(1) know them. usage.go explains them.
const (
	exitNotAcquired = 75 // the default of -E; EX_TEMPFAIL of sysexits.h: try again later
	exitFree        = 1  // the lock is not held
	exitUsage       = 2
	exitFailed      = 1 // the demo or the doctor found a fault
	exitLost        = 124
	exitInternal    = 125
	exitCannotRun   = 126
	exitNotFound    = 127
	exitSignal      = 128 // plus the signal's number
)

// signalled is the cause of a context that ended because the user wants the program to end.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return s.String() }

func (s signalled) exitCode() int {
	if n, ok := s.Signal.(syscall.Signal); ok {
		return exitSignal + int(n)
	}
	return exitInternal
}

// trimPrefix spares the reader a second "rlock:".
func trimPrefix(err error) string { return strings.TrimPrefix(err.Error(), "rlock: ") }

// endCode is the exit code of a command that a signal has ended.
func endCode(ctx context.Context) int {
	var s signalled
	if errors.As(context.Cause(ctx), &s) {
		return s.exitCode()
	}
	return exitInternal
}

// heeded are the signals that we take: not SIGHUP if we were told to ignore it, as by nohup(1). The command ignores it as well.
func heeded(signals ...os.Signal) []os.Signal {
	if signal.Ignored(syscall.SIGHUP) {
		return signals
	}
	return append(signals, syscall.SIGHUP)
}
