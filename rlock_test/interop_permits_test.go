//go:build interop

package rlock_test

import (
	"context"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// permitsBothWays checks docs/redisson.md: both sides share the same expiring permits.
func (w *world) permitsBothWays(t *testing.T) {
	t.Run("count", w.permitsCount)
	t.Run("wait", w.permitsWait)
}

// permitsOf uses the permits of a semaphore from Java.
type permitsOf struct {
	thread *javaThread
	name   string
}

func (p permitsOf) ask(t testing.TB, op string, args ...string) string {
	t.Helper()
	return p.thread.ask(t, "permit."+op, append([]string{url.QueryEscape(p.name)}, args...)...)
}

// acquire begins to wait for a permit in Java.
func (p permitsOf) acquire(t testing.TB, args ...string) <-chan reply {
	t.Helper()
	return p.thread.of.thread().send(t, "permit.acquire", append([]string{url.QueryEscape(p.name)}, args...)...)
}

func (p permitsOf) available(t testing.TB) int64 {
	t.Helper()
	n := answer(strconv.ParseInt(p.ask(t, "available"), 10, 64)).ok(t)
	return n
}

// got waits for the id that Java was given.
func (p permitsOf) got(t testing.TB, ch <-chan reply) string {
	t.Helper()
	r := p.thread.of.await(t, ch)
	require.NoError(t, r.err)
	require.Regexp(t, "^[0-9a-f]{32}$", r.value)
	return r.value
}

func requireNoReply(t testing.TB, ch <-chan reply) {
	t.Helper()
	select {
	case r := <-ch:
		require.FailNow(t, "it waits no longer", "%v", r)
	default:
	}
}

// Each side sees the permits of the other, and gives them back.
func (w *world) permitsCount(t *testing.T) {
	ctx := context.Background()
	name := redistest.Name(t)
	s, java := w.watch.PermitSemaphore(name), permitsOf{w.java.thread(), name}
	require.Equal(t, "true", java.ask(t, "set", "3"))
	set, err := s.TrySetPermits(ctx, 5)
	require.NoError(t, err)
	require.False(t, set)
	held := acquire(t, s, 2)
	require.Equal(t, int64(1), java.available(t))
	id := java.got(t, java.acquire(t))
	requirePermits(t, s, 0, 3)
	left, err := s.LeaseTime(ctx, id)
	require.NoError(t, err)
	require.Equal(t, rlock.NoExpiry, left, "Java does not renew")
	require.Equal(t, "null", java.ask(t, "tryacquire", "0", "1000"))
	_, _, err = s.TryAcquire(ctx, 0)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	require.NoError(t, s.Release(ctx, id))
	require.ErrorIs(t, s.Release(ctx, id), rlock.ErrNotHeld)
	require.Equal(t, "false", java.ask(t, "release", id))
	require.NoError(t, held.permit.Release())
	require.Equal(t, int64(3), java.available(t))
	require.NoError(t, s.SetPermits(ctx, 1))
	require.Equal(t, int64(1), java.available(t))
	id = java.ask(t, "tryacquire", "0", "60000")
	require.Equal(t, "true", java.ask(t, "release", id))
	requirePermits(t, s, 1, 0)
}

// One waits, the other gives back.
func (w *world) permitsWait(t *testing.T) {
	name := redistest.Name(t)
	s, java := w.watch.PermitSemaphore(name), permitsOf{w.java.thread(), name}
	setPermits(t, s, 1)
	for range 10 {
		held := acquire(t, s, 1)
		in := java.acquire(t)
		sleep(100 * time.Millisecond)
		requireNoReply(t, in)
		require.NoError(t, held.permit.Release())
		id := java.got(t, in)
		got, next := w.watch.permitAsync(t, s, 1)
		require.Equal(t, "true", java.ask(t, "release", id))
		require.NoError(t, within(t, got, soon))
		require.NoError(t, next.permit.Release())
	}
	requireFreeAgain(t, s, 1)
}

// permitInLine is permitAsync beside other tests, whose waiters permitAsync would count.
func (w *world) permitInLine(t testing.TB, s *rlock.PermitSemaphore) (got <-chan error, section *permitSection) {
	t.Helper()
	section = new(permitSection)
	got = async(func() (err error) {
		section.ctx, section.permit, err = s.Acquire(t.Context())
		return err
	})
	redistest.Eventually(t, testTimeout, func() bool { return w.watch.inLine(t, s.Name()) == 1 || len(got) > 0 }, "it is in line, or was")
	return got, section
}

// The lease of a permit of either side ends, and the waiter of the other side gets the permit.
func (w *world) permitsExpire(t *testing.T) {
	name := redistest.Name(t)
	s, java := w.watch.PermitSemaphore(name), permitsOf{w.java.thread(), name}
	setPermits(t, s, 1)
	java.got(t, java.acquire(t, ms(shortLease)))
	got, next := w.permitInLine(t, s)
	require.NoError(t, within(t, got, shortLease+soon))
	require.NoError(t, next.permit.Release())
	held := acquire(t, w.watch.PermitSemaphore(name, rlock.WithLease(shortLease)), 1)
	id := java.got(t, java.acquire(t))
	requireLostBy(t, held.ctx, time.Now())
	require.ErrorIs(t, held.permit.Release(), rlock.ErrLost)
	require.Equal(t, "true", java.ask(t, "release", id))
	eventuallyPermits(t, s, 1, 0)
}

// Java waits for a permit that Go renews, for longer than its lease, and a killed Go's comes back. So does one whose lease Java makes longer.
func (w *world) permitsKept(t *testing.T) {
	name := redistest.Name(t)
	s, java := w.quickGo.PermitSemaphore(name), permitsOf{w.java.thread(), name}
	setPermits(t, s, 1)
	held := acquire(t, s, 1)
	in := java.acquire(t, "500")
	sleep(2 * shortLease)
	requireNoReply(t, in)
	require.NoError(t, held.ctx.Err())
	require.NoError(t, held.permit.Release())
	java.got(t, in)
	fixed := acquire(t, w.quickGo.PermitSemaphore(name, rlock.WithLease(endingLease)), 1)
	require.Equal(t, "true", java.ask(t, "lease", fixed.permit.ID(), "60000"))
	requireLost(t, fixed, endingLease+late)
	left, err := s.LeaseTime(context.Background(), fixed.permit.ID())
	require.NoError(t, err)
	require.Greater(t, left, 30*time.Second, "it is trusted for what its own side asked for, and kept for longer")
	require.ErrorIs(t, fixed.permit.Release(), rlock.ErrLost)
	eventuallyPermits(t, s, 1, 0)
	closing := newClient(t, w.watch.rdb, w.options(shortLease))
	_, _, err = closing.PermitSemaphore(name).Acquire(context.Background())
	require.NoError(t, err)
	in = java.acquire(t, "500")
	closing.Close() // nothing is renewed any more
	java.got(t, in)
}

// A permit of Go's that Java gives back, and another way round.
func (w *world) permitsTakenAway(t *testing.T) {
	name := redistest.Name(t)
	s, java := w.quickGo.PermitSemaphore(name), permitsOf{w.java.thread(), name}
	setPermits(t, s, 1)
	held := acquire(t, s, 1)
	in := java.acquire(t)
	require.Equal(t, "true", java.ask(t, "release", held.permit.ID()))
	id := java.got(t, in)
	require.Equal(t, rlock.LostGone, requireLost(t, held, shortLease).Reason)
	require.ErrorIs(t, held.permit.Release(), rlock.ErrLost)
	got, next := w.permitInLine(t, s)
	require.NoError(t, s.UpdateLease(context.Background(), id, time.Second))
	require.NoError(t, within(t, got, time.Second+soon))
	require.Equal(t, "false", java.ask(t, "release", id), "it has expired")
	require.NoError(t, next.permit.Release())
	eventuallyPermits(t, s, 1, 0)
}

// Two processes of Java and two of Go, with four threads each, want one of three permits. In the end all are back.
func (w *world) permitsHerd(t *testing.T) {
	const n, long = 3, 5 * time.Second
	name := redistest.Name(t)
	s := w.watch.PermitSemaphore(name)
	setPermits(t, s, n)
	var replies []<-chan reply
	for _, r := range []*redisson{w.java, w.quickJava} {
		for range 4 {
			replies = append(replies, r.thread().send(t, "permit.hammer", url.QueryEscape(name), "60000", ms(long)))
		}
	}
	var inGo [2]int64
	var mu sync.Mutex // guards the following, and inGo
	slots := make(map[int]bool)
	var all sync.WaitGroup
	for i, c := range []*rlock.Client{w.watch.Client, w.quickGo} {
		for range 4 {
			all.Go(func() {
				for end := time.Now().Add(long); time.Now().Before(end); {
					assert.NoError(t, c.PermitSemaphore(name).Do(context.Background(), func(_ context.Context, p *rlock.Permit) error {
						mu.Lock()
						assert.Less(t, p.Slot(), n)
						assert.False(t, slots[p.Slot()], "slot %d has one permit", p.Slot())
						slots[p.Slot()] = true
						inGo[i]++
						mu.Unlock()
						sleep(time.Millisecond)
						mu.Lock()
						slots[p.Slot()] = false
						mu.Unlock()
						return nil
					}))
				}
			})
		}
	}
	all.Wait()
	inJava := w.java.sum(t, replies)
	t.Logf("%d and %d times in Go, %d in Java", inGo[0], inGo[1], inJava)
	requireFreeAgain(t, s, n)
}

// requireFreeAgain waits until all n permits were given back, also those granted to calls that are over.
func requireFreeAgain(t testing.TB, s *rlock.PermitSemaphore, n int64) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool {
		free, err := s.Available(context.Background())
		return assert.NoError(t, err) && free == n
	}, "all are free")
	requirePermits(t, s, n, 0)
}
