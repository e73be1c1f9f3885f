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

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// G9: a closed Client counts as a server that is down. The quorum ends when a majority of its Clients is closed.
func TestQuorumClose(t *testing.T) {
	redistest.Parallel(t)
	before := ourGoroutines()
	const watchdog = shortWatchdog
	e := newQuorumServers(t, 5)
	a, b := e.process(t, rlock.Options{WatchdogTimeout: watchdog}), e.process(t, rlock.Options{WatchdogTimeout: watchdog})
	ctx, unlock, err := a.Lock(t.Context())
	require.NoError(t, err)
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
	_, _, err = b.TryLock(t.Context(), 0)
	require.ErrorContains(t, err, "held by "+rlock.Owner(other.ctx))
	second := lockAsync(t, b)
	b.close()
	<-other.ctx.Done()
	require.ErrorIs(t, context.Cause(other.ctx), rlock.ErrClosed)
	require.NotErrorIs(t, context.Cause(other.ctx), rlock.ErrLost)
	require.ErrorIs(t, second.get(t, soon).err, rlock.ErrClosed)
	_, _, err = b.Lock(t.Context())
	require.ErrorIs(t, err, rlock.ErrClosed)
	_, _, err = b.Lock(context.WithoutCancel(other.ctx))
	require.ErrorIs(t, err, rlock.ErrClosed, "no level opens whose ctx nothing would cancel")
	local.stillWaits(t)
	require.NoError(t, other.unlock(), "an unlock after Close releases as before")
	local.getAndUnlock(t, 5*time.Second)
	a.close()
	awaitGoroutines(t, before)
	e.awaitVotes(t, 0)
}

// An unlock needs the answers of a majority. The others are released when they are back.
func TestQuorumUnlockBesideTheDead(t *testing.T) {
	redistest.Parallel(t)
	for name, death := range deaths {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			e := newQuorumServers(t, 5)
			v := e.process(t, rlock.Options{})
			ctx, unlock, err := v.Lock(t.Context())
			require.NoError(t, err)
			e.awaitVotes(t, 5)
			death.kill(e, 0)
			death.kill(e, 1)
			began := time.Now()
			require.NoError(t, unlock())
			require.Less(t, time.Since(began), soon)
			require.Error(t, ctx.Err())

			_, unlock, err = v.Lock(t.Context())
			require.NoError(t, err)
			death.kill(e, 2)
			began = time.Now()
			require.ErrorIs(t, unlock(), rlock.ErrUnreachable)
			require.Less(t, time.Since(began), 8*time.Second)
			for i := range 3 {
				death.back(e, i)
			}
			e.awaitVotes(t, 0)
		})
	}
}

// An unlock without answers ends with the lease, if that is earlier than its time limit, and reports the loss.
func TestQuorumUnlockOutlivesItsLease(t *testing.T) {
	redistest.Parallel(t)
	const lease = time.Second
	for says, options := range map[string][]rlock.Option{
		"its lease of fixed length ended":              {rlock.WithLease(lease)},
		"fewer than 2 of 3 servers renewed it in time": nil,
	} {
		t.Run(says, func(t *testing.T) {
			redistest.Parallel(t)
			e := newQuorumServers(t, 3)
			lost := make(chan rlock.LostInfo, 1)
			v := e.process(t, rlock.Options{
				WatchdogTimeout: lease, UnlockTimeout: testTimeout,
				Trace: &rlock.Trace{Lost: func(_ context.Context, i rlock.LostInfo) { lost <- i }},
			}, options...)
			ctx, unlock, err := v.Lock(t.Context())
			require.NoError(t, err)
			e.awaitVotes(t, 3)
			e.proxies[0].BlackHole(true)
			e.proxies[1].BlackHole(true)
			began := time.Now()
			err = unlock()
			require.ErrorIs(t, err, rlock.ErrNotHeld)
			require.ErrorIs(t, err, rlock.ErrLost)
			require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost, "the ctx reports the loss afterwards as well")
			took := time.Since(began)
			require.Greater(t, took, lease/3)
			require.Less(t, took, lease+soon)
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
	redistest.Parallel(t)
	e := newQuorumServers(t, 3)
	e.loadScripts(t)
	v := e.process(t, rlock.Options{})
	e.proxies[2].OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
	_, unlock, err := v.Lock(t.Context())
	require.NoError(t, err)
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
	err = unlock()
	require.ErrorIs(t, err, rlock.ErrLost)
	var loss *rlock.LostError
	require.ErrorAs(t, err, &loss)
	require.Equal(t, rlock.LostGone, loss.Reason)
	e.awaitVotes(t, 0)
}

// Sections beside a dead server, whose proxy still accepts and closes connections, leave one unresolved call each. While no answer
// comes, all are swept together at growing intervals, without a connection for each.
func TestQuorumSweepsTheDeadSeldom(t *testing.T) {
	redistest.Parallel(t)
	const sections = 400
	e := newQuorumServers(t, 3)
	var dials atomic.Int64 // to the dead server
	v := e.processBy(t, func(o *rueidis.ClientOption) {
		o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			if addr == e.proxies[1].Addr() {
				dials.Add(1)
			}
			return d.DialContext(ctx, "tcp", addr)
		}
	}, rlock.Options{})
	require.NoError(t, v.Do(t.Context(), nothing)) // loads the scripts
	e.servers[1].Kill()
	dials.Store(0)
	began, most := time.Now(), sections
	for range sections {
		entered := time.Now()
		require.NoError(t, v.Do(t.Context(), nothing))
		most += int(time.Since(entered) / (100 * time.Millisecond)) // the share is requested again
	}
	most += 9 + int(time.Since(began)/(2*time.Second)) // sweeps after 10 ms, 20 ms, ... 2 s, 2 s
	t.Logf("%d connections, %d at most", dials.Load(), most)
	require.LessOrEqual(t, dials.Load(), int64(most))
	e.servers[1].Restart()
	e.awaitVotes(t, 0)
}
