package main

import (
	"os"
	"testing"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// Each bug still has its place in the engine, which it changes.
func TestBugsHaveTheirPlaces(t *testing.T) {
	t.Chdir("../../..")
	names := make(map[string]bool)
	for _, b := range bugs {
		require.False(t, names[b.name], b.name)
		names[b.name] = true
		path, err := b.overlay(t.TempDir())
		require.NoError(t, err, b.name)
		_, err = os.Stat(path)
		require.NoError(t, err)
		require.NotEqual(t, b.old, b.new, b.name)
	}
}

func TestFailed(t *testing.T) {
	for out, want := range map[string]string{
		"ok  \tx\t0.1s\n": "",
		"--- FAIL: TestX (0.00s)\n    --- FAIL: TestX/y (0.00s)\n":                  "TestX/y",
		"panic: test timed out after 10m0s\n\trunning tests:\n\t\tTestZ (9m0s)\n\n": "TestZ (does not end)",
		"panic: deadlock\n\ngoroutine 1":                                            "panic: deadlock",
	} {
		require.Equal(t, want, failed(out), out)
	}
}
