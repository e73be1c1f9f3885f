package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

func TestAsk(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := newLocks(t, s.Client(t))
		require.Equal(t, result{1, "", "rlock: \"job\": not held\n"}, call(t, s.Addr(), "ask", "job"))
		for _, m := range []*rlock.Mutex{
			c.Mutex("mutex", rlock.WithAsked()), c.FairMutex("fair", rlock.WithAsked()), c.RWMutex("read", rlock.WithAsked()).Read(),
			c.RWMutex("write", rlock.WithAsked()).Write(),
		} {
			ctx, unlock := lock(t.Context(), t, m)
			redistest.Eventually(t, patience, func() bool { return call(t, s.Addr(), "ask", m.Name()).code == 0 }, "it can be asked")
			<-rlock.Asked(ctx)
			require.NoError(t, unlock())
		}
		ctx, unlock := lock(t.Context(), t, c.Mutex("deaf"))
		r := call(t, s.Addr(), "ask", "deaf")
		require.Equal(t, exitFree, r.code)
		require.Contains(t, r.err, "held by "+rlock.Owner(ctx))
		require.Contains(t, r.err, "did not take it WithAsked")
		require.NoError(t, unlock())
		require.Equal(t, exitUsage, call(t, s.Addr(), "ask").code)
	})
}
