package rlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// awaitAsked waits until somebody has asked the hold that ctx carries.
func awaitAsked(t testing.TB, ctx context.Context) {
	t.Helper()
	asked := rlock.Asked(ctx)
	require.NotNil(t, asked, "it wants to know")
	select {
	case <-asked:
	case <-time.After(atMost):
		require.FailNow(t, "nobody has asked")
	}
}

// notAsked requires that nobody has asked so far.
func notAsked(t testing.TB, ctx context.Context) {
	t.Helper()
	asked := rlock.Asked(ctx)
	require.NotNil(t, asked, "it wants to know")
	select {
	case <-asked:
		require.FailNow(t, "somebody has asked")
	default:
	}
}

// earsOf waits until those Clients can be spoken to.
func (b bench) earsOf(t testing.TB, all ...*rlock.Client) {
	t.Helper()
	for _, c := range all {
		redistest.Eventually(t, atMost, func() bool {
			n, err := b.do(t, "PUBSUB", "NUMSUB", "rlock_client:{"+c.ID()+"}").AsIntMap()
			return err == nil && n["rlock_client:{"+c.ID()+"}"] == 1
		}, "the ear")
	}
}

// askedKinds are the locks whose holds can know if somebody waits.
var askedKinds = map[string]func(c *rlock.Client, name string) *rlock.Mutex{
	"mutex":  func(c *rlock.Client, name string) *rlock.Mutex { return c.Mutex(name, rlock.WithAsked()) },
	"fenced": func(c *rlock.Client, name string) *rlock.Mutex { return c.FencedMutex(name, rlock.WithAsked()) },
	"fair":   func(c *rlock.Client, name string) *rlock.Mutex { return c.FairMutex(name, rlock.WithAsked()) },
	"write":  func(c *rlock.Client, name string) *rlock.Mutex { return c.RWMutex(name, rlock.WithAsked()).Write() },
	"lease": func(c *rlock.Client, name string) *rlock.Mutex {
		return c.Mutex(name, rlock.WithAsked(), rlock.WithLease(time.Minute))
	},
}

// G3: a waiter of another process, and one of the same, are seen; and each hold has a channel of its own.
func TestAsked(t *testing.T) {
	redistest.Parallel(t)
	for kind, of := range askedKinds {
		for _, here := range []bool{true, false} {
			t.Run(kind+map[bool]string{true: "/here", false: "/elsewhere"}[here], func(t *testing.T) {
				redistest.Parallel(t)
				b := newBench(t)
				other := b.Client
				if !here {
					other = newClient(t, b.rdb)
				}
				ctx, unlock, err := of(b.Client, b.name).Lock(context.Background())
				require.NoError(t, err)
				inner, unlockInner, err := of(b.Client, b.name).Lock(ctx)
				require.NoError(t, err)
				b.earsOf(t, b.Client)
				notAsked(t, ctx)
				waiter := lockAsync(t, of(other, b.name))
				awaitAsked(t, ctx)
				awaitAsked(t, inner)
				waiter.stillWaits(t)
				require.NoError(t, unlockInner())
				require.NoError(t, unlock())
				require.Nil(t, rlock.Asked(ctx), "it is over")
				next := waiter.get(t, atMost)
				require.NoError(t, next.err)
				notAsked(t, next.ctx)
				require.NoError(t, next.unlock())
			})
		}
	}
}
