package rlock_test

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

func latchChannel(name string) string { return "redisson_countdownlatch__channel__{" + name + "}" }

// set gives a latch its count.
func (b fixture) set(t testing.TB, l *rlock.CountDownLatch, n int64) {
	t.Helper()
	answer(l.TrySetCount(context.Background(), n)).is(t, true)
}

func requireCount(t testing.TB, l *rlock.CountDownLatch, want int64) {
	t.Helper()
	answer(l.Count(context.Background())).is(t, want)
}

// awaitAsync starts an Await, and returns when it waits for a message.
func (b fixture) awaitAsync(t testing.TB, l *rlock.CountDownLatch) <-chan error {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel) // ends the goroutine at the latest
	result := async(func() error { return l.Await(ctx) })
	b.awaitSleep(t)
	return result
}

// awaitSleep waits until the test sleeps on its only latch, without background work.
func (b fixture) awaitSleep(t testing.TB) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool {
		return waiting(t) > 0 && b.hearers(t, latchChannel(b.name)) > 0
	}, "it waits")
}

// hearers counts the connections subscribed to a channel.
func (b fixture) hearers(t testing.TB, channel string) int64 {
	t.Helper()
	counts := answer(b.rdb.Do(context.Background(), b.rdb.B().PubsubNumsub().Channel(channel).Build()).AsIntMap()).ok(t)
	return counts[channel]
}

// wakeTimeout bounds steps that must happen "at once", on a busy machine.
const wakeTimeout = 10 * time.Second

func TestLatch(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx := context.Background()
		l := b.CountDownLatch(b.name)
		require.Equal(t, b.name, l.Name())
		requireCount(t, l, 0)
		require.NoError(t, l.Await(ctx), "a latch without a count is open")
		require.NoError(t, l.CountDown(ctx), "CountDown without a count must do nothing")
		requireCount(t, l, 0)

		b.set(t, l, 2)
		set, err := l.TrySetCount(ctx, 5)
		require.NoError(t, err)
		require.False(t, set)
		requireCount(t, l, 2)
		require.Equal(t, "2", b.text(t, b.name), "the key must have Redisson's format")
		require.NoError(t, l.CountDown(ctx))
		requireCount(t, l, 1)
		err = l.TryAwait(ctx, 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.NoError(t, l.CountDown(ctx))
		requireCount(t, l, 0)
		require.False(t, b.exists(t, b.name))
		require.NoError(t, l.Await(ctx))

		b.set(t, l, 0)
		require.True(t, b.exists(t, b.name))
		require.NoError(t, l.Await(ctx), "a count of 0 is open")
		set = answer(l.TrySetCount(ctx, 1)).ok(t)
		require.False(t, set, "a count of 0 is a count")
		require.NoError(t, l.CountDown(ctx))
		require.False(t, b.exists(t, b.name))

		answer(l.Delete(ctx)).is(t, false)
		b.set(t, l, 7)
		answer(l.Delete(ctx)).is(t, true)
		requireCount(t, l, 0)
	})
}

func (b fixture) text(t testing.TB, key string) string {
	t.Helper()
	s := answer(b.do(t, "GET", key).ToString()).ok(t)
	return s
}

// A key with other data stays unchanged, and the error names the cure.
func TestLatchMisuse(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx := context.Background()
		l := b.CountDownLatch(b.name)
		_, err := l.TrySetCount(ctx, -1)
		require.EqualError(t, err, fmt.Sprintf("rlock: %q: a count is 0 or more", b.name))
		_, err = b.CountDownLatch("").TrySetCount(ctx, 1)
		require.EqualError(t, err, `rlock: "": the name is empty`)
		require.Panics(t, func() { (*rlock.CountDownLatch)(nil).Name() })
		require.Panics(t, func() { _ = new(rlock.CountDownLatch).CountDown(ctx) })
		require.Panics(t, func() { _ = l.Await(nil) }) //nolint:staticcheck // that is what is tested

		all := func(l *rlock.CountDownLatch) map[string]error {
			errs := map[string]error{"CountDown": l.CountDown(ctx), "Await": l.Await(ctx)}
			_, errs["TrySetCount"] = l.TrySetCount(ctx, 1)
			_, errs["Count"] = l.Count(ctx)
			_, errs["Delete"] = l.Delete(ctx)
			return errs
		}
		for what, other := range map[string]struct{ fill, read []string }{
			"a hash": {[]string{"HSET", b.name, foreignOwner, "1"}, []string{"HGETALL", b.name}},
			"a text": {[]string{"SET", b.name, "not a number"}, []string{"GET", b.name}},
		} {
			require.NoError(t, b.do(t, "DEL", b.name).Error())
			require.NoError(t, b.do(t, other.fill...).Error())
			before := answer(b.do(t, other.read...).ToAny()).ok(t)
			for call, err := range all(l) {
				require.ErrorContains(t, err, "not a counter: the key", what+" "+call)
				require.ErrorContains(t, err, "; give it a name that no other data uses", what+" "+call)
				require.NotErrorIs(t, err, rlock.ErrUnreachable)
			}
			after := answer(b.do(t, other.read...).ToAny()).ok(t)
			require.Equal(t, before, after)
		}
		done, cancel := context.WithCancel(ctx)
		cancel()
		require.NoError(t, b.do(t, "DEL", b.name).Error())
		b.set(t, l, 2)
		require.ErrorIs(t, l.CountDown(done), context.Canceled)
		err = l.Await(done)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		requireCount(t, l, 2)
		require.Regexp(t, `^rlock: "`+regexp.QuoteMeta(b.name)+`": not open( after \d+ms)?: 2 left to count down$`, l.TryAwait(ctx, 0).Error())
		err = l.TryAwait(ctx, 20*time.Millisecond)
		var e *rlock.NotAcquiredError
		require.ErrorAs(t, err, &e)
		require.Equal(t, int64(2), e.Count)
		require.Equal(t, b.name, e.Name)
		b.Close()
		for call, err := range all(l) {
			require.ErrorIs(t, err, rlock.ErrClosed, call)
		}
	})
}

// No waiter, in this process or another, sleeps through the opening of a latch, by any cause.
func TestLatchOpens(t *testing.T) {
	for how, open := range map[string]func(t *testing.T, b fixture, l *rlock.CountDownLatch){
		"count": func(t *testing.T, _ fixture, l *rlock.CountDownLatch) {
			require.NoError(t, l.CountDown(context.Background()))
			require.NoError(t, l.CountDown(context.Background()))
		},
		"delete": func(t *testing.T, _ fixture, l *rlock.CountDownLatch) {
			answer(l.Delete(context.Background())).is(t, true)
		},
		"delete by Redisson": func(t *testing.T, b fixture, _ *rlock.CountDownLatch) {
			require.NoError(t, b.do(t, "DEL", b.name).Error())
			require.NoError(t, b.do(t, "PUBLISH", latchChannel(b.name), "1").Error())
		},
		"count down by Redisson": func(t *testing.T, b fixture, _ *rlock.CountDownLatch) {
			require.NoError(t, b.do(t, "DEL", b.name).Error())
			require.NoError(t, b.do(t, "PUBLISH", latchChannel(b.name), "0").Error())
		},
		"delete and set": func(t *testing.T, b fixture, l *rlock.CountDownLatch) {
			answer(l.Delete(context.Background())).ok(t)
			b.set(t, l, 3)
		},
		"count down and set": func(t *testing.T, b fixture, l *rlock.CountDownLatch) {
			require.NoError(t, l.CountDown(context.Background()))
			require.NoError(t, l.CountDown(context.Background()))
			b.set(t, l, 3)
		},
	} {
		runVirtual(t, how, func(t *testing.T, b fixture) {
			l := b.CountDownLatch(b.name)
			b.set(t, l, 2)
			here := b.awaitAsync(t, l)
			other := async(func() error { return newClient(t, b.rdb).CountDownLatch(b.name).Await(context.Background()) })
			redistest.Eventually(t, testTimeout, func() bool { return b.hearers(t, latchChannel(b.name)) == 2 && waiting(t) == 2 }, "both wait")
			sleep(50 * time.Millisecond) // for the look for late waiters
			open(t, b, l)
			require.NoError(t, within(t, here, wakeTimeout))
			require.NoError(t, within(t, other, wakeTimeout))
			redistest.Eventually(t, testTimeout, func() bool { return b.hearers(t, latchChannel(b.name)) == 0 }, "nobody listens any more")
		})
	}
}

// No message reports the expiry of a key; the previous look returned its time.
func TestLatchExpires(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		l := b.CountDownLatch(b.name)
		b.set(t, l, 2)
		require.NoError(t, b.do(t, "PEXPIRE", b.name, "700").Error())
		began := time.Now()
		require.NoError(t, within(t, async(func() error { return l.Await(context.Background()) }), wakeTimeout))
		require.Greater(t, time.Since(began), 500*time.Millisecond)
	})
}

// A latch set anew does not release later waiters because of late messages about the previous count.
func TestLatchIsNeverEarly(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		const rounds = 60
		other := newClient(t, b.rdb).CountDownLatch(b.name)
		l := b.CountDownLatch(b.name)
		for round := range rounds {
			b.set(t, l, 1)
			var opened atomic.Bool
			var waits sync.WaitGroup
			for _, waiter := range []*rlock.CountDownLatch{l, other, l} {
				waits.Go(func() {
					assert.NoError(t, waiter.Await(context.Background()))
					assert.True(t, opened.Load(), "round %d", round)
				})
			}
			if round%3 == 0 {
				sleep(time.Millisecond)
			}
			opened.Store(true)
			require.NoError(t, other.CountDown(context.Background()))
			waits.Wait()
		}
		require.False(t, b.exists(t, b.name))
	})
}

// Reused at once, again and again: a waiter that was seen to wait goes on each time, although the count is never 0 for longer than a
// moment.
func TestLatchIsSetAnewAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		l, there := b.CountDownLatch(b.name), newClient(t, b.rdb).CountDownLatch(b.name)
		b.set(t, l, 1)
		for range 20 {
			waits := b.awaitAsync(t, there)
			sleep(30 * time.Millisecond) // more than those who come wait for each other
			require.NoError(t, l.CountDown(context.Background()))
			b.set(t, l, 1)
			require.NoError(t, within(t, waits, wakeTimeout))
		}
	})
}

// 1,000 waiting goroutines of a process cost as much as a single one, and send nothing meanwhile. The same holds for 1,000 goroutines that
// count down.
func TestLatchOfThousands(t *testing.T) {
	redistest.OnlyVirtual(t, "that all wait can be seen only there", func(t *testing.T) {
		s := redistest.Start(t)
		var waits sync.WaitGroup
		t.Cleanup(waits.Wait) // after the Client's Close
		b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
		b.Client = newClient(t, s.Client(t))
		const n = 1000
		l := b.CountDownLatch(b.name)
		b.set(t, l, n)
		require.NoError(t, l.CountDown(context.Background()))
		other := newClient(t, s.Client(t))
		require.Error(t, other.CountDownLatch(b.name).TryAwait(context.Background(), 0)) // the scripts are known
		other.Close()
		redistest.Eventually(t, testTimeout, func() bool { return b.hearers(t, latchChannel(b.name)) == 0 }, "nobody listens")
		before := redistest.Commands(t, b.rdb)
		since := func() map[string]int64 {
			all := redistest.Commands(t, b.rdb)
			for name := range all {
				all[name] -= before[name]
			}
			return all
		}
		for range n {
			waits.Go(func() { assert.NoError(t, l.Await(context.Background())) })
		}
		b.awaitSleep(t)
		sleep(time.Second) // they look once more soon after they have begun to listen
		require.Equal(t, 1, waiting(t))
		asleep := since()["evalsha"]
		sleep(10 * time.Second)
		require.Equal(t, asleep, since()["evalsha"], "they send nothing")
		got := since()
		require.Equal(t, int64(1), got["subscribe"])
		require.LessOrEqual(t, asleep, int64(3))
		t.Logf("1,000 waiters: %d EVALSHA", asleep)
		require.Equal(t, 1, b.Stats().Waiting)

		var counts sync.WaitGroup
		for range n - 2 {
			counts.Go(func() { assert.NoError(t, l.CountDown(context.Background())) })
		}
		counts.Wait()
		sleep(time.Second)
		last := since()["evalsha"]
		require.NoError(t, l.CountDown(context.Background()))
		waits.Wait()
		got = since()
		require.Equal(t, last+2, got["evalsha"], "the count, and a look for all who are woken")
		t.Logf("999 CountDowns and 1,000 that go on: %d EVALSHA", got["evalsha"]-asleep)
		require.Equal(t, int64(1), got["subscribe"])
		require.False(t, b.exists(t, b.name))
		require.Zero(t, b.Stats().Waiting)
		redistest.Eventually(t, testTimeout, func() bool { return since()["unsubscribe"] == 1 }, "the subscription ends")
	})
}
