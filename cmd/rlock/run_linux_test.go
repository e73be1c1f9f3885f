package main

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
)

// TestRunKilled: a command does not outlive its rlock.
func TestRunKilled(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	r := start(t, nil, "run", "-addr", s.Addr(), "job", "--", "sh", "-c", untilSignal)
	r.saw("inside")
	r.signal(syscall.SIGKILL)
	got := r.rest()
	require.Equal(t, 128+9, got.code)
	require.Equal(t, "ended by TERM", got.out)
}
