package rlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// awaitAsked waits until a waiter has asked the hold that ctx carries.
func awaitAsked(t testing.TB, ctx context.Context) {
	t.Helper()
	asked := rlock.Asked(ctx)
	require.NotNil(t, asked, "the hold was taken with WithAsked")
	select {
	case <-asked:
	case <-time.After(testTimeout):
		require.FailNow(t, "no waiter has asked")
	}
}

// notAsked requires that no waiter has asked so far.
func notAsked(t testing.TB, ctx context.Context) {
	t.Helper()
	asked := rlock.Asked(ctx)
	require.NotNil(t, asked, "the hold was taken with WithAsked")
	select {
	case <-asked:
		require.FailNow(t, "a waiter has asked")
	default:
	}
}

// earsOf waits until the Clients listen on their channels.
func (b fixture) earsOf(t testing.TB, all ...*rlock.Client) {
	t.Helper()
	for _, c := range all {
		redistest.Eventually(t, testTimeout, func() bool {
			n, err := b.do(t, "PUBSUB", "NUMSUB", "rlock_client:{"+c.ID()+"}").AsIntMap()
			return err == nil && n["rlock_client:{"+c.ID()+"}"] == 1
		}, "the Client listens on its channel")
	}
}

// askedKinds are the locks that support WithAsked.
var askedKinds = map[string]func(c *rlock.Client, name string) *rlock.Mutex{
	"mutex":  func(c *rlock.Client, name string) *rlock.Mutex { return c.Mutex(name, rlock.WithAsked()) },
	"fenced": func(c *rlock.Client, name string) *rlock.Mutex { return c.FencedMutex(name, rlock.WithAsked()) },
	"fair":   func(c *rlock.Client, name string) *rlock.Mutex { return c.FairMutex(name, rlock.WithAsked()) },
	"write":  func(c *rlock.Client, name string) *rlock.Mutex { return c.RWMutex(name, rlock.WithAsked()).Write() },
	"lease": func(c *rlock.Client, name string) *rlock.Mutex {
		return c.Mutex(name, rlock.WithAsked(), rlock.WithLease(time.Minute))
	},
}

// G3: a hold learns of a waiter in another process and in its own. Each hold has its own channel.
func TestAsked(t *testing.T) {
	for kind, of := range askedKinds {
		for _, here := range []bool{true, false} {
			redistest.RunVirtual(t, kind+map[bool]string{true: "/here", false: "/elsewhere"}[here], func(t *testing.T) {
				b := newFixture(t)
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
				require.Nil(t, rlock.Asked(ctx), "the hold has ended")
				next := waiter.get(t, testTimeout)
				require.NoError(t, next.err)
				notAsked(t, next.ctx)
				require.NoError(t, next.unlock())
			})
		}
	}
}

// A waiter asks the writer that holds the lock. A writer that waits for readers asks all of them.
func TestAskedOfReadersAndWriters(t *testing.T) {
	redistest.RunVirtual(t, "a writer waits for readers of several processes", func(t *testing.T) {
		b := newFixture(t)
		clients := []*rlock.Client{b.Client, newClient(t, b.rdb), newClient(t, b.rdb)}
		var readers []context.Context
		var unlocks []rlock.UnlockFunc
		for _, c := range clients {
			for range 2 { // the second reader joins the first
				ctx, unlock, err := c.RWMutex(b.name, rlock.WithAsked()).Read().Lock(context.Background())
				require.NoError(t, err)
				readers, unlocks = append(readers, ctx), append(unlocks, unlock)
			}
		}
		b.earsOf(t, clients...)
		for _, ctx := range readers {
			notAsked(t, ctx)
		}
		writer := lockAsync(t, newClient(t, b.rdb).RWMutex(b.name).Write())
		for i, ctx := range readers {
			awaitAsked(t, ctx)
			require.NoError(t, unlocks[i]())
		}
		got := writer.get(t, testTimeout)
		require.NoError(t, got.err)
		require.Nil(t, rlock.Asked(got.ctx), "the writer has no WithAsked")
		require.NoError(t, got.unlock())
	})
	redistest.RunVirtual(t, "a reader that waits behind a writer does not ask readers here", func(t *testing.T) {
		b := newFixture(t)
		rw := b.RWMutex(b.name, rlock.WithAsked())
		ctx, unlock, err := rw.Read().Lock(context.Background())
		require.NoError(t, err)
		_, unlockToo, err := rw.Read().Lock(context.Background())
		require.NoError(t, err)
		notAsked(t, ctx)
		require.NoError(t, unlockToo())
		writer := lockAsync(t, rw.Write())
		awaitAsked(t, ctx)
		require.NoError(t, unlock())
		w := writer.get(t, testTimeout)
		require.NoError(t, w.err)
		notAsked(t, w.ctx)
		reader := lockAsync(t, rw.Read())
		awaitAsked(t, w.ctx)
		require.NoError(t, w.unlock())
		reader.getAndUnlock(t, testTimeout)
	})
	redistest.RunVirtual(t, "upgrade", func(t *testing.T) {
		b := newFixture(t)
		rw := b.RWMutex(b.name, rlock.WithAsked())
		ctx, unlock, err := rw.Upgradeable().Lock(context.Background())
		require.NoError(t, err)
		other, unlockOther, err := newClient(t, b.rdb).RWMutex(b.name, rlock.WithAsked()).Read().Lock(context.Background())
		require.NoError(t, err)
		notAsked(t, ctx)
		upgraded := make(chan error, 1)
		go func() {
			upgraded <- rw.Upgradeable().UpgradeDo(ctx, func(ctx context.Context) error { return nil })
		}()
		awaitAsked(t, other)
		notAsked(t, ctx)
		require.NoError(t, unlockOther())
		require.NoError(t, within(t, upgraded, testTimeout))
		another := lockAsync(t, rw.Upgradeable())
		awaitAsked(t, ctx)
		require.NoError(t, unlock())
		another.getAndUnlock(t, testTimeout)
	})
}

// A hold also learns of waiters that were there before it began, even if it got the lock directly from another goroutine of its
// process.
func TestAskedByThoseWhoWaitAlready(t *testing.T) {
	for _, here := range []bool{true, false} {
		redistest.RunVirtual(t, map[bool]string{true: "here", false: "elsewhere"}[here], func(t *testing.T) {
			b := newFixture(t, rlock.Options{HandOff: rlock.HandOff{For: time.Hour}})
			m := b.Mutex(b.name, rlock.WithAsked())
			third := b.Client
			if !here {
				third = newClient(t, b.rdb)
			}
			first, unlock, err := m.Lock(context.Background())
			require.NoError(t, err)
			second := lockAsync(t, m)
			awaitAsked(t, first)
			inLine := func(want int64) {
				t.Helper()
				redistest.Eventually(t, testTimeout, func() bool {
					n, err := b.do(t, "ZCARD", "rlock_queue:{"+b.name+"}").AsInt64()
					return err == nil && n == want
				}, "they are in the queue in Redis")
			}
			inLine(1) // so that the last one comes behind it
			last := lockAsync(t, third.Mutex(b.name))
			redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 2 }, "both wait")
			if !here {
				b.awaitSubscribers(t, b.name, 2)
				inLine(2)
			}
			require.NoError(t, unlock())
			got := second.get(t, testTimeout)
			require.NoError(t, got.err)
			awaitAsked(t, got.ctx)
			require.NoError(t, got.unlock())
			got = last.get(t, testTimeout)
			require.NoError(t, got.err)
			require.Nil(t, rlock.Asked(got.ctx))
			require.NoError(t, got.unlock())
		})
	}
}

// A process that receives the lock from another process learns of the waiters behind it, although these do not know yet that it has
// the lock.
func TestAskedAfterAGrant(t *testing.T) {
	for kind, of := range askedKinds {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			b := newFixture(t)
			first, unlock, err := of(b.Client, b.name).Lock(context.Background())
			require.NoError(t, err)
			var waiters []pendingLock
			for i := range 2 {
				waiters = append(waiters, lockAsync(t, of(newClient(t, b.rdb), b.name)))
				redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == i+1 }, "the goroutine waits")
			}
			awaitAsked(t, first)
			require.NoError(t, unlock())
			var got lockResult
			var other pendingLock
			select {
			case got = <-waiters[0].result:
				other = waiters[1]
			case got = <-waiters[1].result:
				other = waiters[0]
			case <-time.After(testTimeout):
				require.FailNow(t, "no waiter got the lock")
			}
			require.NoError(t, got.err)
			awaitAsked(t, got.ctx)
			require.NoError(t, got.unlock())
			last := other.get(t, testTimeout)
			require.NoError(t, last.err)
			notAsked(t, last.ctx)
			require.NoError(t, last.unlock())
		})
	}
}

// A section that holds several locks is asked as soon as a waiter wants any of them.
func TestAskedForOneOfSeveral(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		all := rlock.All(b.Mutex(b.name+":1", rlock.WithAsked()), b.FairMutex(b.name+":2", rlock.WithAsked()), b.Mutex(b.name+":3"))
		for _, n := range []string{":1", ":2"} {
			ctx, unlock, err := all.Lock(context.Background())
			require.NoError(t, err)
			inner, unlockInner, err := b.Mutex(b.name + ":4").Lock(ctx)
			require.NoError(t, err)
			b.earsOf(t, b.Client)
			notAsked(t, ctx)
			notAsked(t, inner)
			other := newClient(t, b.rdb)
			l := other.Mutex(b.name + n)
			if n == ":2" {
				l = other.FairMutex(b.name + n)
			}
			waiter := lockAsync(t, l)
			awaitAsked(t, ctx)
			awaitAsked(t, inner)
			require.NoError(t, unlockInner())
			require.NoError(t, unlock())
			waiter.getAndUnlock(t, testTimeout)
		}
	})
}

// A quorum is asked through each of its servers, and by the goroutines of its own process.
func TestAskedOfAQuorum(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		var rdbs []rueidis.Client
		for range 3 {
			rdbs = append(rdbs, redistest.Start(t).Client(t))
		}
		quorum := func(clients []*rlock.Client) *rlock.QuorumMutex {
			var members []rlock.Locker
			for _, c := range clients {
				members = append(members, c.Mutex("quorum", rlock.WithAsked()))
			}
			return rlock.Quorum(members...)
		}
		clients := func() (all []*rlock.Client) {
			for _, rdb := range rdbs {
				all = append(all, newClient(t, rdb))
			}
			return all
		}
		own := clients()
		for name, waiter := range map[string]*rlock.QuorumMutex{"here": quorum(own), "elsewhere": quorum(clients())} {
			ctx, unlock, err := quorum(own).Lock(context.Background())
			require.NoError(t, err, name)
			inner, unlockInner, err := quorum(own).Lock(ctx)
			require.NoError(t, err, name)
			notAsked(t, ctx)
			w := lockAsync(t, waiter)
			awaitAsked(t, ctx)
			awaitAsked(t, inner)
			require.NoError(t, unlockInner(), name)
			require.NoError(t, unlock(), name)
			got := w.get(t, testTimeout)
			require.NoError(t, got.err, name)
			require.NoError(t, got.unlock(), name)
		}
		_, _, err := rlock.Quorum(own[0].Mutex("q", rlock.WithAsked()), own[1].Mutex("q"), own[2].Mutex("q")).Lock(context.Background())
		require.ErrorContains(t, err, "give it to all members")
		_, _, err = own[0].PermitSemaphore("p", rlock.WithAsked()).Acquire(context.Background())
		require.ErrorContains(t, err, "WithAsked is for locks")
	})
}
