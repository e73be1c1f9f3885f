//go:build unix

package redistest

import (
	"syscall"
	"testing"
	"time"
)

// CPU returns the CPU time that this process has used. A busy machine does not lengthen it, but tests beside this one do.
func CPU(tb testing.TB) time.Duration {
	tb.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
