package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
)

// A full disk ends a recording.
func TestRecordEndsWithItsFile(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	r := call(t, s.Addr(), "record", "-for", "1m", "-o", "/dev/full")
	require.Equal(t, exitInternal, r.code)
	require.Contains(t, r.err, "the recording ends early: write /dev/full: no space left on device")
}
