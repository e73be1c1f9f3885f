package main

import (
	"os"
	"strings"
	"syscall"
)

// Exit codes, as users of flock(1) and timeout(1) know them. usage.go explains them.
const (
	exitNotAcquired = 1 // the default of -E
	exitUsage       = 2
	exitFailed      = 1 // the demo found a fault
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
