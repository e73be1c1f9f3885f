package faults

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// netSteps are the script calls of a section with a re-entry, in order.
var netSteps = []string{"first acquire", "re-entry for longer", "count that follows", "unlock"}

// Fault 1, G1, G5, G6: the request or reply of each call in turn is lost with its connection. Every call succeeds, once,
// and none waits for the count that follows. A second client is excluded until the last unlock, and then gets in at once.
func TestNetCallLostWithItsConnection(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, protocol := range netProtocols {
		for kind, newCtx := range netContexts {
			for lost, on := range map[string]func(*redistest.Proxy, redistest.Hook){
				"request": (*redistest.Proxy).OnRequest, "reply": (*redistest.Proxy).OnReply,
			} {
				for n, step := range netSteps {
					t.Run(name+"/"+kind+"/"+lost+" of "+step, func(t *testing.T) {
						b := netFixtureOn(t, s, rlock.Options{}, protocol)
						on(b.proxy, redistest.Nth(n+1, "EVALSHA", redistest.Cut))
						m := b.lock.Mutex(b.name)
						ctx, unlock, err := m.Lock(newCtx(t))
						require.NoError(t, err)
						require.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, b.fields(t))
						b.excluded(t)
						inner, unlockInner, err := b.forLonger().Lock(ctx)
						require.NoError(t, err)
						require.Equal(t, map[string]int64{rlock.Owner(ctx): 2}, b.fields(t))
						require.NoError(t, unlockInner())
						require.Error(t, inner.Err())
						require.ErrorIs(t, unlockInner(), rlock.ErrNotHeld)
						b.counts(t, ctx, 1)
						b.excluded(t)
						require.NoError(t, ctx.Err())
						require.NoError(t, unlock())
						require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
						require.True(t, b.free(t))
						b.becomesFree(t, 0)
					})
				}
			}
		}
	}
}

// Fault 1, G1, G5, G6: the reply to each call in turn never comes, and the connection stays silent. Once rueidis gives it
// up, the call is sent again on another connection: every call succeeds, once, long before the 30 s lease ends. Only an
// unlock behind another unanswered call may fail before rueidis gives up.
func TestNetCallOnASilentConnection(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, protocol := range netProtocols {
		for kind, newCtx := range netContexts {
			for n, step := range netSteps {
				t.Run(name+"/"+kind+"/"+step, func(t *testing.T) {
					t.Parallel()
					b := netFixtureOn(t, s, rlock.Options{}, protocol)
					b.proxy.OnReply(redistest.Nth(n+1, "EVALSHA", redistest.Drop))
					m := b.lock.Mutex(b.name)
					got := startLock(newCtx(t), m).within(t, netGivesUp+netSlack)
					require.NoError(t, got.err)
					require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, b.fields(t))
					inner := startLock(got.ctx, b.forLonger()).within(t, netGivesUp+netSlack)
					require.NoError(t, inner.err)
					require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 2}, b.fields(t))
					require.NoError(t, returned(t, call(inner.unlock), time.Second), "must send nothing")
					b.counts(t, got.ctx, 1)
					b.excluded(t)
					require.NoError(t, got.ctx.Err())
					err := returned(t, call(got.unlock), netGivesUp+netSlack)
					if step == "count that follows" && err != nil { // the unlock shares the connection, and has less time
						require.ErrorIs(t, err, rlock.ErrUnreachable)
						redistest.Eventually(t, netGivesUp+netSlack, func() bool { return b.free(t) }, "the release must continue in the background")
					} else {
						require.NoError(t, err)
						require.True(t, b.free(t))
					}
					require.ErrorIs(t, got.unlock(), rlock.ErrNotHeld)
					b.becomesFree(t, 0)
				})
			}
		}
	}
}

// Fault 1, G2, G6, G7: the request or reply of some renewals is lost with the connection. The hold outlives its first
// lease, and after the unlock nothing is left.
func TestNetRenewalLost(t *testing.T) {
	t.Parallel()
	const watchdog = 3 * time.Second
	s := redistest.Start(t)
	for name, protocol := range netProtocols {
		for lost, on := range map[string]func(*redistest.Proxy, redistest.Hook){
			"request": (*redistest.Proxy).OnRequest, "reply": (*redistest.Proxy).OnReply,
		} {
			t.Run(name+"/"+lost, func(t *testing.T) {
				t.Parallel()
				b := netFixtureOn(t, s, rlock.Options{WatchdogTimeout: watchdog}, protocol)
				on(b.proxy, redistest.Nth(1, netScript("renew"), redistest.Cut))
				on(b.proxy, redistest.Nth(3, netScript("renew"), redistest.Cut))
				ctx, unlock, err := b.lock.Mutex(b.name).Lock(context.Background())
				require.NoError(t, err)
				for end := time.Now().Add(3 * watchdog); time.Now().Before(end); sleep(watchdog / 10) {
					require.NoError(t, ctx.Err())
					require.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, b.fields(t))
					b.excluded(t)
				}
				require.NoError(t, unlock())
				b.becomesFree(t, 0)
				for end := time.Now().Add(watchdog); time.Now().Before(end); sleep(watchdog / 10) {
					require.True(t, b.free(t), "no renewal may be sent or repeated after the unlock")
				}
			})
		}
	}
}

// Fault 1, G2: the renewals' connection falls silent. The next attempt uses another connection, in time.
func TestNetRenewalSurvivesASilentConnection(t *testing.T) {
	t.Parallel()
	const watchdog = 9 * time.Second
	// With a PING on the connection, rueidis would keep it, and one in four attempts would use it again.
	noPing := func(o *rueidis.ClientOption) { o.Dialer.KeepAlive, o.ConnWriteTimeout = time.Minute, netGivesUp }
	b := newNetFixture(t, rlock.Options{WatchdogTimeout: watchdog}, noPing)
	b.proxy.OnReply(redistest.Nth(1, netScript("renew"), redistest.Drop))
	ctx, unlock, err := b.lock.Mutex(b.name).Lock(context.Background())
	require.NoError(t, err)
	for end := time.Now().Add(watchdog + watchdog/3); time.Now().Before(end); sleep(watchdog / 20) {
		require.NoError(t, ctx.Err())
		b.excluded(t)
	}
	require.NoError(t, unlock())
	require.True(t, b.free(t))
}

// Fault 1, G2, G8: from the second renewal on, all replies are lost, though Redis renews. The holder's ctx is cancelled
// before another client gets the lock, and its renewals stop.
func TestNetRenewalsUnanswered(t *testing.T) {
	t.Parallel()
	const watchdog = 3 * time.Second
	b := newNetFixture(t, rlock.Options{WatchdogTimeout: watchdog})
	all, renewals := redistest.Each(netScript("renew"), redistest.Drop), 0
	b.proxy.OnReply(func(cmd []string) redistest.Action {
		if all(cmd) == redistest.Pass {
			return redistest.Pass
		}
		if renewals++; renewals == 1 {
			return redistest.Pass
		}
		return redistest.Drop
	})
	ctx, unlock, err := b.lock.Mutex(b.name).Lock(context.Background())
	require.NoError(t, err)
	told := cancellationOf(ctx)
	next := startLock(context.Background(), b.other.Mutex(b.name))
	got := next.within(t, 3*watchdog+netSlack)
	require.NoError(t, got.err)
	require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
	told.by(t, got.at, 0)
	err = unlock()
	require.ErrorIs(t, err, rlock.ErrLost)
	require.ErrorIs(t, err, rlock.ErrNotHeld)
	require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, b.fields(t), "G8")
	require.NoError(t, got.unlock())
}

// Fault 1, G2, G5: all replies to renewals are lost with their connections, though Redis renews. The holder's ctx is
// cancelled long before the lease ends in Redis. The unlock returns ErrLost, and frees the lock in Redis too.
func TestNetUnlockOfALostHoldFreesIt(t *testing.T) {
	t.Parallel()
	const watchdog = 8 * time.Second
	b := newNetFixture(t, rlock.Options{WatchdogTimeout: watchdog})
	b.proxy.OnReply(redistest.Each(netScript("renew"), redistest.Cut))
	ctx, unlock, err := b.lock.Mutex(b.name).Lock(context.Background())
	require.NoError(t, err)
	cancellationOf(ctx).by(t, b.expiry(t), tellSlack)
	require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
	require.Greater(t, time.Until(b.expiry(t)), watchdog/2, "renewed shortly before")
	b.excluded(t)
	require.ErrorIs(t, unlock(), rlock.ErrLost)
	b.becomesFree(t, watchdog/4)
}
