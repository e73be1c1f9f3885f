package rlock_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// G9: a closed Client counts as a server that is down. The quorum ends when a majority of its Clients is closed.
func TestQuorumClose(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = shortWatchdog
		e := newQuorumServers(t, 5)
		a, b := e.process(t, rlock.Options{WatchdogTimeout: watchdog}), e.process(t, rlock.Options{WatchdogTimeout: watchdog})
		ctx, unlock := enter(t, t.Context(), a)
		e.awaitVotes(t, 5)
		waiter := lockAsync(t, b)
		e.awaitSubscribers(t, 1)
		a.clients[0].Close()
		a.clients[3].Close()
		b.clients[1].Close()
		b.clients[2].Close()
		sleep(watchdog * 3 / 2)
		require.NoError(t, ctx.Err())
		waiter.stillWaits(t)
		require.NoError(t, unlock())
		other := waiter.get(t, 5*time.Second)
		require.NoError(t, other.err)

		local := lockAsync(t, a)
		_, _, err := b.TryLock(t.Context(), 0)
		require.ErrorContains(t, err, "held by "+rlock.Owner(other.ctx))
		second := lockAsync(t, b)
		b.close()
		<-other.ctx.Done()
		require.ErrorIs(t, context.Cause(other.ctx), rlock.ErrClosed)
		require.NotErrorIs(t, context.Cause(other.ctx), rlock.ErrLost)
		require.ErrorIs(t, second.get(t, soon).err, rlock.ErrClosed)
		requireLockFails(t, t.Context(), b, rlock.ErrClosed)
		_, _, err = b.Lock(context.WithoutCancel(other.ctx))
		require.ErrorIs(t, err, rlock.ErrClosed, "no level opens whose ctx nothing would cancel")
		local.stillWaits(t)
		require.NoError(t, other.unlock(), "an unlock after Close releases as before")
		local.getAndUnlock(t, 5*time.Second)
		a.close()
		e.awaitVotes(t, 0)
	})
}

// An unlock needs the answers of a majority. The others are released when they are back.
func TestQuorumUnlockBesideTheDead(t *testing.T) {
	for name, death := range deaths {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			e := newQuorumServers(t, 5)
			v := e.process(t, rlock.Options{})
			ctx, unlock := enter(t, t.Context(), v)
			e.awaitVotes(t, 5)
			death.kill(e, 0)
			death.kill(e, 1)
			began := time.Now()
			require.NoError(t, unlock())
			requireTook(t, 0, began, time.Now())
			require.Error(t, ctx.Err())

			_, unlock = enter(t, t.Context(), v)
			death.kill(e, 2)
			began = time.Now()
			require.ErrorIs(t, unlock(), rlock.ErrUnreachable)
			requireTook(t, 3*time.Second, began, time.Now()) // Options.UnlockTimeout
			for i := range 3 {
				death.back(e, i)
			}
			e.awaitVotes(t, 0)
		})
	}
}

// An unlock without answers ends with the lease, if that is earlier than its time limit, and reports the loss.
func TestQuorumUnlockOutlivesItsLease(t *testing.T) {
	const lease = time.Second
	for says, options := range map[string][]rlock.Option{
		"its lease of fixed length ended":              {rlock.WithLease(lease)},
		"fewer than 2 of 3 servers renewed it in time": nil,
	} {
		redistest.RunVirtual(t, says, func(t *testing.T) {
			e := newQuorumServers(t, 3)
			lost := make(chan rlock.LostInfo, 1)
			v := e.process(t, rlock.Options{
				WatchdogTimeout: lease, UnlockTimeout: testTimeout,
				Trace: &rlock.Trace{Lost: func(_ context.Context, i rlock.LostInfo) { lost <- i }},
			}, options...)
			ctx, unlock := enter(t, t.Context(), v)
			e.awaitVotes(t, 3)
			e.proxies[0].BlackHole(true)
			e.proxies[1].BlackHole(true)
			began := time.Now()
			err := unlock()
			require.ErrorIs(t, err, rlock.ErrNotHeld)
			require.ErrorIs(t, err, rlock.ErrLost)
			require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost, "the ctx reports the loss afterwards as well")
			requireTook(t, lease-lease/100-2*time.Millisecond, began, time.Now()) // less the drift of clocks
			info := <-lost
			require.Equal(t, "quorum", info.Kind)
			require.Equal(t, rlock.LostExpired, info.Err.Reason)
			require.ErrorContains(t, info.Err, says)
			require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
			e.proxies[0].BlackHole(false)
			e.proxies[1].BlackHole(false)
			e.awaitVotes(t, 0)
			require.NoError(t, v.Do(t.Context(), nothing), "the process can lock again")
			e.awaitVotes(t, 0)
			for _, c := range v.clients {
				require.Equal(t, 0, c.Stats().Holds)
			}
		})
	}
}

// A share released during the section, because its Client was closed, does not count at the unlock: another owner may have had that
// server since.
func TestQuorumUnlockCountsNoShareGivenBackBefore(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		e := newQuorumServers(t, 3)
		e.loadScripts(t)
		v := e.process(t, rlock.Options{})
		e.proxies[2].OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
		_, unlock := enter(t, t.Context(), v)
		e.awaitVotes(t, 3)
		closed := async(func() error { v.clients[2].Close(); return nil })
		redistest.Eventually(t, testTimeout, func() bool {
			_, err := v.clients[2].Mutex(e.name).IsLocked(t.Context())
			return errors.Is(err, rlock.ErrClosed)
		}, "Close has begun")
		sleep(100 * time.Millisecond) // until the call for the share is abandoned
		e.proxies[2].Release()
		require.NoError(t, within(t, closed, testTimeout))
		e.awaitVotes(t, 2)
		require.NoError(t, e.watch[1].Do(t.Context(), e.watch[1].B().Del().Key(e.name).Build()).Error())
		err := unlock()
		require.ErrorIs(t, err, rlock.ErrLost)
		var loss *rlock.LostError
		require.ErrorAs(t, err, &loss)
		require.Equal(t, rlock.LostGone, loss.Reason)
		e.awaitVotes(t, 0)
	})
}

// Sections beside a dead server, whose proxy still accepts and closes connections, leave one unresolved call each. While no answer
// comes, all are swept together at growing intervals, without a connection for each.
func TestQuorumSweepsTheDeadSeldom(t *testing.T) {
	redistest.OnlyVirtual(t, "a section takes less than 100 ms, after which a share is requested again", func(t *testing.T) {
		const sections = 200
		e := newQuorumServers(t, 3)
		var dials atomic.Int64 // to the dead server
		v := e.processBy(t, func(o *rueidis.ClientOption) {
			redistest.Via(e.proxies[1])(o)
			dial := o.DialCtxFn
			o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
				if addr == e.proxies[1].Addr() {
					dials.Add(1)
				}
				return dial(ctx, addr, d, c)
			}
		}, rlock.Options{})
		require.NoError(t, v.Do(t.Context(), nothing)) // loads the scripts
		e.servers[1].Kill()
		dials.Store(0)
		began := time.Now()
		for range sections {
			require.NoError(t, v.Do(t.Context(), nothing))
		}
		redistest.Settle(t)
		asked := dials.Load()
		require.LessOrEqual(t, asked, int64(2*sections), "for the share, and to give it back")
		sleep(10 * time.Second)
		sweeps := 9 + time.Since(began)/(2*time.Second) // after 10 ms, 20 ms, ... 2 s, 2 s
		require.LessOrEqual(t, dials.Load()-asked, int64(2*sweeps), "rueidis may try again on a new connection")
		e.servers[1].Restart()
		e.awaitVotes(t, 0)
	})
}
