package redistest_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// soon bounds the time of immediate events on a busy machine.
const soon = 10 * time.Second

// within returns a ctx for a command that must be answered.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func ping(t *testing.T, c rueidis.Client, d time.Duration) error {
	return c.Do(within(t, d), c.B().Ping().Build()).Error()
}

func TestStartServesAndTakesArguments(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--maxclients", "77")
	c := s.Client(t)
	got, err := c.Do(t.Context(), c.B().ConfigGet().Parameter("maxclients", "save").Build()).AsStrMap()
	require.NoError(t, err)
	require.Equal(t, map[string]string{"maxclients": "77", "save": ""}, got)
}

func TestCleanupEndsTheServer(t *testing.T) {
	var pid int
	t.Run("inner", func(t *testing.T) {
		s := redistest.Start(t)
		pid = s.Pid()
		s.Pause() // clean-up must manage that too
	})
	require.Positive(t, pid)
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Signal(syscall.Signal(0)) // asks only whether there is one
	}
	require.ErrorIs(t, err, os.ErrProcessDone)
}

func TestStopAndKillAndRestart(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	addr := s.Addr()
	for _, end := range []func(){s.Stop, s.Kill} {
		c := s.Client(t, func(o *rueidis.ClientOption) { o.DisableRetry = true })
		require.NoError(t, ping(t, c, soon))
		end()
		require.Zero(t, s.Pid())
		require.Error(t, ping(t, c, soon))
		s.Restart()
		require.Equal(t, addr, s.Addr())
		redistest.Eventually(t, soon, func() bool { return ping(t, c, time.Second) == nil }, "client finds the server again")
	}
	before := s.Pid()
	s.Restart() // of a server that is up
	require.NotEqual(t, before, s.Pid())
}

// TestPortIsKept: every process that takes a port listens on its guard first, and keeps it while the server is down.
func TestPortIsKept(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.StartProxy(t, s.Addr())
	s.Kill()
	p.Refuse(true)
	for _, addr := range []string{s.Addr(), p.Addr()} {
		ln, err := net.Listen("tcp4", redistest.GuardOf(addr))
		if err == nil {
			_ = ln.Close()
		}
		require.ErrorIs(t, err, syscall.EADDRINUSE)
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := s.Client(t)
	s.Pause()
	require.ErrorIs(t, ping(t, c, 50*time.Millisecond), context.DeadlineExceeded)
	s.Resume()
	require.NoError(t, ping(t, c, soon))
}

func TestSharedIsOneServer(t *testing.T) {
	t.Parallel()
	first, second := redistest.Shared(t), redistest.Shared(t)
	require.Equal(t, first, second)
	c := redistest.Dial(t, redistest.Shared(t))
	require.NoError(t, ping(t, c, soon))
}

func TestSharedPrefersTheEnvironment(t *testing.T) {
	t.Setenv("RLOCK_TEST_ADDR", "127.0.0.1:1")
	require.Equal(t, "127.0.0.1:1", redistest.Shared(t))
}

// fatal records a helper's message when it gives up.
type fatal struct {
	testing.TB
	msg string
}

func (f *fatal) Helper() {}
func (f *fatal) Fatal(args ...any) {
	f.msg = fmt.Sprint(args...)
	panic(f)
}

func TestNoServerInstalled(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	f := &fatal{TB: t}
	require.PanicsWithValue(t, f, func() { redistest.Start(f) })
	require.Contains(t, f.msg, "install redis-server (apt-get install redis-server, brew install redis) or set RLOCK_TEST_ADDR")
}

func TestServerThatCannotStartShowsItsLog(t *testing.T) {
	t.Parallel()
	f := &fatal{TB: t}
	require.PanicsWithValue(t, f, func() { redistest.Start(f, "--no-such-option", "1") })
	require.Contains(t, f.msg, "no-such-option")
}

func TestName(t *testing.T) {
	t.Parallel()
	a, b := redistest.Name(t), redistest.Name(t)
	require.NotEqual(t, a, b)
	require.True(t, strings.HasPrefix(a, "TestName."), a)
	t.Run("{x}", func(t *testing.T) { require.NotContains(t, redistest.Name(t), "{") })
}
