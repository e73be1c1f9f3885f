package rlock_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Whatever Redis says, a candidate goes on: somebody may mend it. Only what the program itself got wrong ends it.
func TestLeadGoesOnAfterRefusals(t *testing.T) {
	redistest.Parallel(t)
	led := errors.New("led")
	for _, says := range []string{
		"NOAUTH Authentication required.", "WRONGPASS invalid username-password pair or user is disabled.",
		"NOPERM this user has no permissions to run the 'evalsha' command", "OOM command not allowed when used memory > 'maxmemory'.",
		"MISCONF Redis is configured to save RDB snapshots", "NOREPLICAS Not enough good replicas to write.",
		"LOADING Redis is loading the dataset in memory", "BUSY Redis is busy running a script.",
		"READONLY You can't write against a read only replica.", "CLUSTERDOWN The cluster is down",
		"MASTERDOWN Link with MASTER is down", "ERR max number of clients reached", "ERR what nobody has thought of",
	} {
		redistest.RunVirtual(t, strings.Fields(says)[0]+strings.ReplaceAll(says[len(says)-8:], " ", ""), func(t *testing.T) {
			proxy := redistest.StartProxy(t, redistest.Shared(t))
			var log bytes.Buffer
			b := newBareFixture(t)
			b.Client = newClient(t, redistest.Dial(t, proxy.Addr()), rlock.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			var refused atomic.Bool
			proxy.OnRequest(func(cmd []string) redistest.Action {
				if isScript(cmd) && !refused.Swap(true) {
					return redistest.Fail(says)
				}
				return redistest.Pass
			})
			err := rlock.Lead(context.Background(), b.Mutex(b.name), func(context.Context) error { return led })
			require.ErrorIs(t, err, led)
			b.Close() // flushes the log
			if strings.HasPrefix(says, "NO") && !strings.HasPrefix(says, "NOREPL") || strings.HasPrefix(says, "WRONG") {
				require.Contains(t, log.String(), "Redis refuses a candidate of Lead")
			}
		})
	}
	t.Run("WithMaxWait", func(t *testing.T) {
		redistest.OnlyVirtual(t, "it waits for a minute", func(t *testing.T) {
			b := newFixture(t)
			_, unlock, err := b.Mutex(b.name).Lock(context.Background())
			require.NoError(t, err)
			time.AfterFunc(time.Minute, func() { _ = unlock() })
			err = rlock.Lead(context.Background(), b.Mutex(b.name, rlock.WithMaxWait(time.Second)), func(context.Context) error { return led })
			require.ErrorIs(t, err, led)
		})
	})
	redistest.RunVirtual(t, "a bad name", func(t *testing.T) {
		b := newFixture(t)
		require.NoError(t, b.do(t, "SET", b.name, "a text").Error())
		err := rlock.Lead(context.Background(), b.Mutex(b.name), func(context.Context) error { return led })
		require.ErrorContains(t, err, "not a lock")
		err = rlock.Lead(context.Background(), b.Mutex(""), func(context.Context) error { return led })
		require.ErrorContains(t, err, "empty")
	})
}
