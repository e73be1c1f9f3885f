package rlock_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// seldom lets holders check their locks only every twenty minutes, so that anything they learn sooner reached them in a message.
var seldom = rlock.Options{WatchdogTimeout: time.Hour}

func exists(t testing.TB, rdb rueidis.Client, key string) bool {
	t.Helper()
	n, err := rdb.Do(context.Background(), rdb.B().Exists().Key(key).Build()).AsInt64()
	require.NoError(t, err)
	return n == 1
}

// A user without the right to subscribe or to publish locks as before, and its Client logs this once. The holder finds such waiters
// by polling.
func TestAskedForbidden(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t)
	admin := fixture{rdb: s.Client(t)}
	limited := func(t *testing.T, name string, rules ...string) (*rlock.Client, *lockedBuffer) {
		t.Helper()
		all := append([]string{"ACL", "SETUSER", name, "reset", "resetchannels", "on", ">secret", "~*", "&redisson_*", "+@all"}, rules...)
		require.NoError(t, admin.do(t, all...).Error())
		j := new(lockedBuffer)
		rdb := s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = name, "secret" })
		return newClient(t, rdb, rlock.Options{WatchdogTimeout: shortWatchdog, Logger: slog.New(slog.NewTextHandler(j, nil))}), j
	}
	t.Run("to listen", func(t *testing.T) {
		redistest.Parallel(t)
		c, j := limited(t, "deaf")
		other := newClient(t, s.Client(t))
		m := c.Mutex("deaf", rlock.WithAsked())
		lockAndUnlock(t, m)
		redistest.Eventually(t, testTimeout, func() bool { return strings.Count(j.String(), "cannot ask this Client") == 1 }, "the Client has logged it")
		for _, l := range []*rlock.Client{c, other} { // the holder finds the second waiter by polling
			hold := locked(t, m)
			require.NotContains(t, rlock.Owner(hold.ctx), ":11000000000", "the owner does not offer to be asked")
			waiter := lockAsync(t, l.Mutex("deaf"))
			awaitAsked(t, hold.ctx)
			require.NoError(t, hold.unlock())
			waiter.getAndUnlock(t, testTimeout)
		}
		require.Equal(t, 1, strings.Count(j.String(), "cannot ask this Client"))
	})
	t.Run("to speak", func(t *testing.T) {
		redistest.Parallel(t)
		c, j := limited(t, "dumb")
		holder := newClient(t, s.Client(t), rlock.Options{WatchdogTimeout: shortWatchdog})
		for _, name := range []string{"dumb1", "dumb2"} {
			hold := locked(t, holder.Mutex(name, rlock.WithAsked()))
			waiter := lockAsync(t, c.Mutex(name))
			awaitAsked(t, hold.ctx)
			require.NoError(t, hold.unlock())
			waiter.getAndUnlock(t, testTimeout)
		}
		redistest.Eventually(t, testTimeout, func() bool { return strings.Count(j.String(), "cannot ask other processes") == 1 }, "the Client has logged it once")
	})
}

// A waiter repeats a message if the message or its reply is lost. A holder that missed a message looks for waiters once it is
// connected again.
func TestAskedReconnects(t *testing.T) {
	for name, row := range map[string]struct {
		holder, waiter func(p *redistest.Proxy) // run before the waiter arrives
		then           func(p *redistest.Proxy) // run on the holder's proxy once the waiter waits
	}{
		"the message is lost with its connection": {waiter: func(p *redistest.Proxy) { p.OnRequest(redistest.Nth(1, "PUBLISH", redistest.Cut)) }},
		"its answer is lost":                      {waiter: func(p *redistest.Proxy) { p.OnReply(redistest.Nth(1, "PUBLISH", redistest.Cut)) }},
		"the server is busy":                      {waiter: func(p *redistest.Proxy) { p.OnRequest(redistest.Nth(1, "PUBLISH", redistest.Fail("LOADING it comes"))) }},
		"the holder was cut off": {
			holder: func(p *redistest.Proxy) { p.Refuse(true); p.CutAll() }, then: func(p *redistest.Proxy) { p.Refuse(false) },
		},
		"the holder's connection is silent": {
			holder: func(p *redistest.Proxy) { p.OnReply(redistest.Each("MESSAGE", redistest.Drop)) }, then: func(p *redistest.Proxy) { p.CutAll() },
		},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b := newBareFixture(t)
			near, far := redistest.StartProxy(t, redistest.Shared(t)), redistest.StartProxy(t, redistest.Shared(t))
			holder := newClient(t, redistest.Dial(t, near.Addr()), seldom)
			waits := newClient(t, redistest.Dial(t, far.Addr()), seldom)
			loadScripts(t, waits)
			hold := locked(t, holder.Mutex(b.name, rlock.WithAsked()))
			b.earsOf(t, holder)
			if row.holder != nil {
				row.holder(near)
			}
			if row.waiter != nil {
				row.waiter(far)
			}
			sent := make(chan error, 10)
			far.OnReply(func(cmd []string) redistest.Action {
				if cmd[0] == "PUBLISH" && cmd[1] == ear(holder) {
					sent <- nil
				}
				return redistest.Pass
			})
			waiter := lockAsync(t, waits.Mutex(b.name))
			b.awaitQueued(t, b.name)
			if row.then != nil {
				require.NoError(t, within(t, sent, testTimeout), "the waiter has sent its message")
				notAsked(t, hold.ctx)
				row.then(near)
			}
			awaitAsked(t, hold.ctx)
			waiter.cancel()
			require.ErrorIs(t, waiter.get(t, testTimeout).err, rlock.ErrNotAcquired)
			require.NoError(t, hold.unlock())
		})
	}
}

// A late, repeated or forged message costs nothing but time: nobody gets or loses the lock, and no later hold is notified.
func TestAskedLies(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		o := failAfter(time.Hour)
		o.WatchdogTimeout = seldom.WatchdogTimeout
		b := newFixture(t, o)
		m := b.Mutex(b.name, rlock.WithAsked())
		say := func(text string) {
			t.Helper()
			require.NoError(t, b.do(t, "PUBLISH", ear(b.Client), text).Error())
		}
		hold := locked(t, m)
		b.earsOf(t, b.Client)
		_, tag, _ := strings.Cut(rlock.Owner(hold.ctx), ":")
		for _, text := range []string{
			"", "asked", "0 asked", "0 asked ", "0 asked 1", "0 asked x", "0 asked 19999999999999999999", "0 asked 11999999999999999999", "0 probe " + tag,
			"1 asked " + tag, "0 ASKED " + tag, "0 asked " + tag + " ", "0 asked -" + tag, "0 asked " + strings.Repeat("1", 10_000), "\x00\xff",
			"0 tried x", "0 tried 11000000000000000000", "0 waits x", "0 deadlock x", "0 found x", "0 other x",
		} {
			say(text)
		}
		const sentinel = "0 asked 11000000000000000000"
		for range 200 {
			say(sentinel) // more than the Client remembers
		}
		heard, err := b.Ask(t.Context(), b.name+":nobody")
		require.NoError(t, err)
		require.False(t, heard)
		notAsked(t, hold.ctx)
		for range 3 {
			say("0 asked " + tag) // forged: nobody waits
		}
		awaitAsked(t, hold.ctx)
		require.NoError(t, hold.ctx.Err())
		held, err := m.IsHeld(hold.ctx)
		require.NoError(t, err)
		require.True(t, held)
		require.NoError(t, hold.unlock())
		say("0 asked " + tag) // late
		next := locked(t, m)
		notAsked(t, next.ctx)
		require.NoError(t, next.unlock())
	})
}

// A process takes many locks at once, and is asked for all of them before it learns that it has them.
func TestAskedForManyAtOnce(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const n = 200
		c, proxy, b := behindProxy(t, pipelined, seldom)
		lockAndUnlock(t, c.Mutex(b.name, rlock.WithAsked()))
		awaitEar(t, b.rdb, c)
		var holds atomic.Bool
		holds.Store(true)
		proxy.OnReply(func(cmd []string) redistest.Action {
			if holds.Load() && cmd[0] == "EVALSHA" {
				return redistest.Hold
			}
			return redistest.Pass
		})
		var holders, waiters []pendingLock
		for i := range n {
			holders = append(holders, lockAsync(t, c.Mutex(fmt.Sprint(b.name, i), rlock.WithAsked())))
		}
		redistest.Eventually(t, testTimeout, func() bool { return b.size(t) >= n }, "it has them in Redis")
		published := redistest.Commands(t, b.rdb)["publish"]
		for i := range n {
			waiters = append(waiters, lockAsync(t, b.Mutex(fmt.Sprint(b.name, i))))
		}
		redistest.Eventually(t, testTimeout, func() bool { return redistest.Commands(t, b.rdb)["publish"] >= published+n }, "it is asked for all")
		holds.Store(false)
		proxy.Release()
		for _, h := range holders {
			got := h.get(t, testTimeout)
			require.NoError(t, got.err)
			awaitAsked(t, got.ctx)
			require.NoError(t, got.unlock())
		}
		for _, w := range waiters {
			w.getAndUnlock(t, testTimeout)
		}
	})
}
