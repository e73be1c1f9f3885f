package rlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// quickTimeout makes rueidis give up on a silent connection soon.
func quickTimeout(o *rueidis.ClientOption) {
	o.Dialer.KeepAlive, o.ConnWriteTimeout = time.Second, 3*time.Second
}

// loadLatchScripts makes sure that no call is sent twice because Redis does not know its script.
func (b fixture) loadLatchScripts(t testing.TB) {
	t.Helper()
	l := b.CountDownLatch(redistest.Name(t))
	b.set(t, l, 2)
	require.NoError(t, l.CountDown(context.Background()))
	require.Error(t, l.TryAwait(context.Background(), 0))
	answer(l.Delete(context.Background())).ok(t)
}

// A late copy of a call does nothing, even if the latch has been set anew.
func TestLatchCopiesComeLate(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, b := behindProxy(t, anyWay)
		b.loadLatchScripts(t)
		watch := b.CountDownLatch(b.name)
		l := c.CountDownLatch(b.name)
		for name, call := range map[string]func() error{
			"set":    func() error { _, err := l.TrySetCount(context.Background(), 3); return err },
			"down":   func() error { return l.CountDown(context.Background()) },
			"delete": func() error { _, err := l.Delete(context.Background()); return err },
		} {
			answer(watch.Delete(context.Background())).ok(t)
			if name != "set" {
				b.set(t, watch, 3)
			}
			proxy.OnRequest(nthScript(1, redistest.Hold))
			result := async(call)
			redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() > 0 }, "it is under way")
			proxy.CutAll()
			require.NoError(t, within(t, result, testTimeout), name)
			answer(watch.Delete(context.Background())).ok(t)
			if name != "set" {
				b.set(t, watch, 7)
			}
			proxy.Release()
			sleep(200 * time.Millisecond)
			requireCount(t, watch, map[string]int64{"set": 0, "down": 7, "delete": 7}[name])
		}
	})
}

// While Redis is down each call returns ErrUnreachable. The CountDowns that failed still count once Redis is back.
func TestLatchOutage(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, b := behindProxy(t, anyWay)
		watch, l := b.CountDownLatch(b.name), c.CountDownLatch(b.name)
		b.set(t, watch, 5)
		requireCount(t, l, 5)
		var looks atomic.Int32
		proxy.OnRequest(func(cmd []string) redistest.Action {
			if isScript(cmd) {
				looks.Add(1)
			}
			return redistest.Pass
		})
		waits := b.awaitAsync(t, l)
		redistest.Eventually(t, testTimeout, func() bool { return looks.Load() >= 2 && c.Stats().Waiting == 1 },
			"it has looked again after it was subscribed: a look without an answer ends the wait")
		proxy.Refuse(true)
		proxy.CutAll()
		down := []<-chan error{}
		for range 2 {
			down = append(down, async(func() error { return l.CountDown(context.Background()) }))
		}
		for _, result := range down {
			require.ErrorIs(t, within(t, result, testTimeout), rlock.ErrUnreachable)
		}
		require.ErrorIs(t, l.CountDown(context.Background()), rlock.ErrUnreachable, "at once")
		_, err := l.TrySetCount(context.Background(), 9)
		require.ErrorIs(t, err, rlock.ErrUnreachable)
		_, err = l.Delete(context.Background())
		require.ErrorIs(t, err, rlock.ErrUnreachable)
		err = c.CountDownLatch(b.name+"2").TryAwait(context.Background(), 0)
		require.ErrorIs(t, err, rlock.ErrUnreachable)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		proxy.Refuse(false)
		redistest.Eventually(t, testTimeout, func() bool {
			n, err := watch.Count(context.Background())
			return err == nil && n == 2
		}, "all three are counted")
		require.NoError(t, watch.CountDown(context.Background()))
		require.NoError(t, watch.CountDown(context.Background()))
		require.NoError(t, within(t, waits, wakeTimeout), "it still waits")
	})
}

// A CountDown that Redis refuses is repeated for a minute. Meanwhile others open the latch, and those who wait for it here see that.
func TestLatchOpensDuringAnOutageOfChanges(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, b := behindProxy(t, anyWay)
		b.loadLatchScripts(t)
		watch, l := b.CountDownLatch(b.name), c.CountDownLatch(b.name)
		b.set(t, watch, 1)
		var refused atomic.Int32
		proxy.OnRequest(func(cmd []string) redistest.Action {
			if looks := len(cmd) == len([]string{"EVALSHA", "sha", "2", "latch", "record"}) || !isScript(cmd); looks {
				return redistest.Pass
			}
			if refused.Add(1) == 1 {
				return redistest.Cut // so that it may have run
			}
			return redistest.Fail("NOREPLICAS Not enough good replicas to write.")
		})
		waits := b.awaitAsync(t, l)
		require.ErrorIs(t, l.CountDown(context.Background()), rlock.ErrPending)
		late := b.awaitAsync(t, l)
		require.NoError(t, watch.CountDown(context.Background()))
		require.NoError(t, within(t, waits, wakeTimeout))
		require.NoError(t, within(t, late, wakeTimeout))
		before := refused.Load()
		redistest.Eventually(t, testTimeout, func() bool { return refused.Load() > before }, "it is repeated all the while")
	})
}

// A CountDown of which no waiter could be told says so, and not that Redis did not answer. It counts once.
func TestLatchTellsNobody(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, b := behindProxy(t, anyWay)
		b.loadLatchScripts(t)
		b.set(t, b.CountDownLatch(b.name), 2)
		proxy.OnRequest(nthScript(1, redistest.Fail("UNTOLD NOPERM User app has no permissions to access a channel")))
		err := c.CountDownLatch(b.name).CountDown(context.Background())
		require.ErrorIs(t, err, rlock.ErrPending)
		require.ErrorContains(t, err, "UNTOLD")
		require.NotErrorIs(t, err, rlock.ErrUnreachable)
		noCalls(t)
		requireCount(t, b.CountDownLatch(b.name), 1)
	})
}
