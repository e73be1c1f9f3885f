package main

import (
	"syscall"
	"time"
)

// sleepUntil returns at t, some 60 us late. Go's own timers are up to a millisecond late in a process that
// has nothing else to do, which would double a delay of half a one.
func sleepUntil(t time.Time) {
	for {
		left := time.Until(t)
		if left <= 0 {
			return
		}
		ts := syscall.NsecToTimespec(left.Nanoseconds())
		_ = syscall.Nanosleep(&ts, nil) // interrupted: what is left is computed anew
	}
}
