//go:build unix

package main

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// A command gets its signal when another process waits for the lock, and on "rlock ask".
func TestRunAsked(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	const untilAsked = `trap 'echo asked; exit 7' USR1; echo inside; while :; do sleep 0.1; done`
	for name, ask := range map[string]func(){
		"rlock ask": func() {
			redistest.Eventually(t, patience, func() bool { return call(t, s.Addr(), "ask", "job").code == 0 }, "it can be asked")
		},
		"a waiter": func() { require.Zero(t, call(t, s.Addr(), "run", "job", "--", "true").code) },
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, nil, "run", "-addr", s.Addr(), "-v", "-asked", "USR1", "job", "--", "sh", "-c", untilAsked)
			r.saw("inside")
			ask()
			got := r.rest()
			require.Equal(t, 7, got.code, got.err)
			require.Contains(t, got.out, "asked")
			require.Contains(t, got.err, `"job": somebody waits for the lock`)
		})
	}
	for _, wrong := range []string{"", "NOSUCH", "0", "999"} {
		require.Equal(t, exitUsage, call(t, s.Addr(), "run", "-asked", wrong, "job", "--", "true").code, wrong)
	}
	for text, want := range map[string]syscall.Signal{"USR1": syscall.SIGUSR1, "sigterm": syscall.SIGTERM, "15": syscall.SIGTERM} {
		got, err := parseSignal(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}
