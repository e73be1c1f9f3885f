package faults

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

const (
	// lateWatchdog is how long waiters sleep after asking.
	lateWatchdog = 3 * time.Second
	// When the grant message arrives, from the unlock on: within the grant lease or after it.
	lateInIt    = grantLease * 5 / 8
	lateAfterIt = grantLease * 5 / 4
)

// lateGrant is a grant whose message is delayed.
type lateGrant struct {
	*grantScene

	first, second, third *grantClient
	unlocked             time.Time
	late                 time.Duration
}

// arrives delivers the message at the intended time.
func (g *lateGrant) arrives(t *testing.T) {
	t.Helper()
	require.Less(t, time.Since(g.unlocked), g.late, "this machine is too slow for the order of the events")
	sleep(time.Until(g.unlocked.Add(g.late)))
	g.first.proxy.Release()
}

// rest requires that the lock passes along the line, in order.
func (g *lateGrant) rest(t *testing.T, from granted, line ...*grantClient) {
	t.Helper()
	for _, c := range line {
		from = g.passes(t, from, c, promptly)
	}
	require.NoError(t, from.unlock())
}

// others requires that the lock passes to all of the line, in any order: a waiter whose answer is still under way may
// lose its turn to another process.
func (g *lateGrant) others(t *testing.T, from granted, line ...waiter) {
	t.Helper()
	in := make(chan granted, len(line))
	for _, w := range line {
		go func() { in <- <-w }() // ends when Lock returns
	}
	for range line {
		require.NoError(t, from.unlock())
		from = waiter(in).gets(t, promptly, "handed over")
		g.alone(t, from)
	}
	require.NoError(t, from.unlock())
}

// Fault 1, G1, G4, G5, G9: the grant message arrives after more than half of the grant lease or after its end, and the
// process has asked, given up or closed meanwhile. The message changes nothing: one process has the lock, and the
// others get their turns. In TestGrantMessageLate the process only waits.
func TestGrantMessageLateForOneThatHasGoneOn(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		late  time.Duration
		asks  time.Duration // from the unlock to the first waiter's own next attempt; 0: none
		after func(t *testing.T, g *lateGrant)
	}{
		{"asked, and has it; in it", lateInIt, grantLease / 4, askedAndHas},
		{"asked, and has it; after it", lateAfterIt, grantLease / 4, askedAndHas},
		{"asked in vain; long after it", grantLease * 9 / 4, lateWatchdog, func(t *testing.T, g *lateGrant) {
			t.Helper()
			got := g.gets(t, g.second, grantLease+promptly, "looks when the grant lease ends")
			redistest.Eventually(t, promptly, func() bool { return len(queued(t, g.rdb, g.name)) == 2 }, "asked, and is in the queue again")
			before := queued(t, g.rdb, g.name)
			g.arrives(t)
			redistest.Eventually(t, promptly, func() bool {
				now := queued(t, g.rdb, g.name)
				return len(now) == 2 && !slices.Equal(now, before)
			}, "asked once more, and is in the queue as a new owner")
			g.first.waiter.waits(t)
			g.alone(t, got)
			g.rest(t, got, g.third, g.first)
		}},
		{"cancelled; in it", lateInIt, 0, cancelled},
		{"cancelled; after it", lateAfterIt, 0, cancelled},
		{"cancelled, and another waits here; in it", lateInIt, 0, cancelledBeforeAnother},
		{"cancelled, and another waits here; after it", lateAfterIt, 0, cancelledBeforeAnother},
		{"its successor has passed it on; after it", lateAfterIt, 0, func(t *testing.T, g *lateGrant) {
			t.Helper()
			got := g.gets(t, g.second, grantLease+promptly, "looks when the grant lease ends")
			got = g.passes(t, got, g.third, promptly)
			g.arrives(t)
			redistest.Eventually(t, promptly, func() bool { return len(queued(t, g.rdb, g.name)) == 1 }, "asked, and is in the queue again")
			g.first.waiter.waits(t)
			g.alone(t, got)
			g.rest(t, got, g.first)
		}},
		{"its client is closing; in it", lateInIt, 0, closing},
		{"its client is closing; after it", lateAfterIt, 0, closing},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := newGrantScene(t, redistest.Shared(t), 0, rlock.Options{WatchdogTimeout: lateWatchdog})
			joined := time.Now()
			for range 3 {
				s.join(t, s.client(t, rlock.Options{WatchdogTimeout: lateWatchdog}))
			}
			g := &lateGrant{grantScene: s, first: s.line[0], second: s.line[1], third: s.line[2], late: row.late}
			if row.asks > 0 {
				sleep(time.Until(joined.Add(lateWatchdog - row.asks)))
			}
			g.first.proxy.OnReply(once(isGrant, redistest.Hold))
			g.unlocked = time.Now()
			require.NoError(t, s.held.unlock())
			redistest.Eventually(t, promptly, func() bool { return g.first.proxy.Held() > 0 }, "granted")
			row.after(t, g)
		})
	}
}

func askedAndHas(t *testing.T, g *lateGrant) {
	t.Helper()
	got := g.gets(t, g.first, promptly, "asked, and found itself the owner")
	g.arrives(t)
	more := startLock(context.Background(), g.first.Mutex(g.name)) // the message is not for this one
	redistest.Eventually(t, promptly, func() bool { return len(queued(t, g.rdb, g.name)) == 3 }, "it waits as well")
	g.alone(t, got)
	g.others(t, got, more, g.second.waiter, g.third.waiter)
}

func cancelled(t *testing.T, g *lateGrant) {
	t.Helper()
	g.first.cancel()
	require.ErrorIs(t, g.first.waiter.within(t, promptly).err, context.Canceled)
	got := g.gets(t, g.second, promptly, "given back")
	g.arrives(t)
	g.alone(t, got)
	g.rest(t, got, g.third)
}

// cancelledBeforeAnother: the next waiter of the process inherits the place, and a grant whose message comes in time.
func cancelledBeforeAnother(t *testing.T, g *lateGrant) {
	t.Helper()
	more := startLock(context.Background(), g.first.Mutex(g.name))
	redistest.Eventually(t, promptly, func() bool { return g.first.Stats().Waiting == 2 }, "it waits as well")
	g.first.waiter.waits(t)
	g.first.cancel()
	require.ErrorIs(t, g.first.waiter.within(t, promptly).err, context.Canceled)
	if g.late < grantLease {
		g.arrives(t)
		got := more.gets(t, promptly, "inherited the place")
		g.alone(t, got)
		g.rest(t, got, g.second, g.third)
		return
	}
	got := g.gets(t, g.second, grantLease+promptly, "looks when the grant lease ends")
	g.arrives(t)
	g.alone(t, got)
	require.Empty(t, more)
	g.others(t, got, more, g.third.waiter)
}

func closing(t *testing.T, g *lateGrant) {
	t.Helper()
	g.first.proxy.OnRequest(once(mixScript, redistest.Hold)) // holds the release of the grant
	closed := call(func() error { g.first.Close(); return nil })
	require.ErrorIs(t, g.first.waiter.within(t, promptly).err, rlock.ErrClosed)
	if g.late < grantLease {
		g.arrives(t)
		require.NoError(t, returned(t, closed, 2*promptly))
		g.rest(t, g.gets(t, g.second, grantLease+promptly, "given back, or expired"), g.third)
		return
	}
	got := g.gets(t, g.second, grantLease+promptly, "looks when the grant lease ends")
	g.arrives(t)
	require.NoError(t, returned(t, closed, 2*promptly))
	g.alone(t, got)
	g.rest(t, got, g.third)
}
