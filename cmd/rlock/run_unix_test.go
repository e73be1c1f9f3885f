//go:build unix

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// fullPipe is a pipe that accepts no more data.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	raw, err := w.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Write(func(fd uintptr) bool {
		for chunk := make([]byte, 4096); len(chunk) > 0; {
			if _, err := syscall.Write(int(fd), chunk); err != nil {
				chunk = chunk[:len(chunk)/2]
			}
		}
		return true
	}))
	return w
}

// An unread stderr delays nothing: not the command's start, nor its end after a loss, the unlock, or rlock's exit.
func TestRunWithABlockedStderr(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, lose := range map[string]bool{"lost": true, "unlocked": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startInto(t, fullPipe(t), "run", "-v", "-addr", s.Addr(), "-watchdog", quick, "-kill-after", "1h", name, "--",
				"sh", "-c", "exec 2>/dev/null; "+untilSignal)
			r.saw("inside")
			code := 11 // of the command
			if lose {
				rdb := s.Client(t)
				require.NoError(t, rdb.Do(t.Context(), rdb.B().Del().Key(name).Build()).Error())
				code = exitLost
			} else {
				r.signal(syscall.SIGTERM)
			}
			got := r.rest()
			require.Equal(t, code, got.code)
			require.Equal(t, "ended by TERM", got.out)
			require.Equal(t, exitFree, call(t, s.Addr(), "show", name).code)
		})
	}
}

// If stderr's reader goes away, rlock survives with its command, unlike other writers. The command itself gets SIGPIPE as usual.
func TestRunWithAClosedStderr(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, r.Close())
	t.Cleanup(func() { _ = w.Close() })
	run := startInto(t, w, "run", "-v", "-addr", s.Addr(), "job", "--", "sh", "-c", "sh -c 'echo >&2'; echo code $?; exit 7")
	got := run.rest()
	require.Equal(t, 7, got.code)
	require.Equal(t, fmt.Sprint("code ", exitSignal+int(syscall.SIGPIPE)), got.out)
	requireEmpty(t, s)
}

// A signal ends each command at once while Redis is silent, during the connect and afterwards.
func TestSignalWhileRedisHangs(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for _, command := range []string{"show", "ls", "top", "watch", "unlock", "doctor", "token", "run"} {
		for _, when := range []string{"connecting", "asking"} {
			t.Run(command+" "+when, func(t *testing.T) {
				t.Parallel()
				proxy := redistest.StartProxy(t, s.Addr())
				asked := make(chan struct{}, 100)
				proxy.OnRequest(func(cmd []string) redistest.Action {
					switch name := strings.ToUpper(cmd[0]); {
					case when == "connecting", !slices.Contains([]string{"HELLO", "CLIENT", "PING", "CLUSTER"}, name):
						asked <- struct{}{}
						return redistest.Drop
					}
					return redistest.Pass
				})
				args := []string{command, "-redis", proxy.Addr()}
				switch command {
				case "show", "watch", "token":
					args = append(args, "job")
				case "unlock":
					args = append(args, "-force", "-yes", "job")
				case "run":
					args = append(args, "job", "--", "echo", "inside")
				}
				r := start(t, hasty, args...)
				<-asked
				began := time.Now()
				r.signal(syscall.SIGINT)
				got := r.rest()
				require.Less(t, redistest.Ran(t, began, time.Now()), 4*time.Second) // a question may take answerTime
				require.Equal(t, exitSignal+int(syscall.SIGINT), got.code, got.err)
				require.Empty(t, got.out+got.err)
			})
		}
	}
}

// What a command leaves behind goes on without the lock, unless -wait-group keeps the lock for it.
func TestRunWaitGroup(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	// It is inside once the command has been seen to end.
	const script = `exec 3<&0; (while kill -0 $$ 2>/dev/null; do sleep 0.01; done; echo inside; cat <&3; echo done >&2) & exit 3`
	t.Run("without", func(t *testing.T) {
		t.Parallel()
		r := start(t, nil, "run", "-addr", s.Addr(), "without", "--", "sh", "-c", script)
		r.saw("inside")
		redistest.Eventually(t, patience, func() bool { return call(t, s.Addr(), "show", "without").code == exitFree }, "it is unlocked")
		require.NoError(t, r.in.Close())
		require.Equal(t, result{3, "", "done\n"}, r.rest())
	})
	t.Run("with", func(t *testing.T) {
		t.Parallel()
		r := start(t, nil, "run", "-addr", s.Addr(), "-wait-group", "-v", "with", "--", "sh", "-c", script)
		r.saw("inside")
		require.Zero(t, call(t, s.Addr(), "show", "with").code, "it is held")
		require.NoError(t, r.in.Close())
		got := r.rest()
		require.Equal(t, 3, got.code)
		require.Regexp(t, `(?s)^rlock: "with": acquired [^\n]*\ndone\nrlock: "with": released `, got.err)
	})
	t.Run("signal", func(t *testing.T) {
		t.Parallel()
		r := start(t, nil, "run", "-addr", s.Addr(), "-wait-group", "signal", "--", "sh", "-c", `(while kill -0 $$; do sleep 0.01; done 2>/dev/null; `+untilSignal+`) & exit 3`)
		r.saw("inside")
		r.signal(syscall.SIGTERM)
		got := r.rest()
		require.Equal(t, 3, got.code)
		require.Equal(t, "ended by TERM", got.out)
	})
}
