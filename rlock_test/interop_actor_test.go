//go:build interop

package rlock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// actor is a lock owner on one side: a call chain in Go, a thread in Java. It does one thing at a time.
type actor interface {
	// as returns the same owner, for locks of another kind.
	as(kind string) actor
	lockKind() string
	// start begins to lock and returns at once. A lease of 0 means that the watchdog renews.
	start(t testing.TB, name string, lease time.Duration) <-chan event
	unlock(t testing.TB, name string) event
	// tryInVain makes one attempt, which must not succeed.
	tryInVain(t testing.TB, name string)
	force(t testing.TB, name string) event
	// look returns the actor's view of the lock: whether anybody holds it, the actor's own depth, and the
	// remaining lease.
	look(t testing.TB, name string) (locked bool, count int, ttl time.Duration)
	// field is the actor's owner field in Redis while it holds the lock.
	field(t testing.TB, name string) string
	// requireNotHeld requires that err is this side's error for unlocking a lock that the caller does not hold.
	requireNotHeld(t testing.TB, err error)
}

// event is the result of a call. Both sides take their times from the same wall clock.
type event struct {
	began, ended time.Time
	err          error
}

func await(t testing.TB, events <-chan event, within time.Duration) event {
	t.Helper()
	e := redistest.Within(t, within, events, "it is in")
	require.NoError(t, e.err)
	return e
}

// lock locks a free lock.
func lock(t testing.TB, a actor, name string, lease time.Duration) event {
	t.Helper()
	return await(t, a.start(t, name, lease), testTimeout)
}

// requireIn requires that a waiter is in less than most after a moment, see redistest.Ran.
func requireIn(t testing.TB, most time.Duration, from time.Time, in event, says ...any) {
	t.Helper()
	require.Less(t, redistest.Ran(t, from, in.ended), most, says...)
}

// later returns the later of two moments.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func unlock(t testing.TB, a actor, name string) event {
	t.Helper()
	e := a.unlock(t, name)
	require.NoError(t, e.err)
	return e
}

// requireWaiting requires that a started Lock is still waiting.
func requireWaiting(t testing.TB, events <-chan event) {
	t.Helper()
	select {
	case e := <-events:
		require.FailNow(t, "Lock returned, should wait", "%v", e.err)
	default:
	}
}

// goActor locks one name with the ctx of its innermost hold.
type goActor struct {
	*goHolds
	kind string // as in mutexOf
}

// goHolds are a goActor's holds, of locks of all kinds.
type goHolds struct {
	client *rlock.Client

	mu   sync.Mutex   // guards the following
	held []lockResult // outermost first
}

func newGoActor(c *rlock.Client) *goActor { return &goActor{&goHolds{client: c}, ""} }

func (g *goActor) as(kind string) actor { return &goActor{g.goHolds, kind} }

func (g *goActor) lockKind() string { return g.kind }

func (g *goActor) mutex(name string, o ...rlock.Option) *rlock.Mutex {
	return mutexOf(g.client, g.kind, name, o...)
}

// mutexOf is a lock of a kind, which is "" or a word of Peer.java.
func mutexOf(c *rlock.Client, kind, name string, o ...rlock.Option) *rlock.Mutex {
	switch kind {
	case "fair":
		return c.FairMutex(name, o...)
	case "fenced":
		return c.FencedMutex(name, o...)
	case "read":
		return c.RWMutex(name, o...).Read()
	case "write":
		return c.RWMutex(name, o...).Write()
	}
	return c.Mutex(name, o...)
}

func (g *goActor) ctx() context.Context {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.held) == 0 {
		return context.Background()
	}
	return g.held[len(g.held)-1].ctx
}

func (g *goActor) start(t testing.TB, name string, lease time.Duration) <-chan event {
	var options []rlock.Option
	if lease > 0 {
		options = append(options, rlock.WithLease(lease))
	}
	return g.startOn(t, g.mutex(name, options...))
}

func (g *goActor) startOn(t testing.TB, m locker) <-chan event {
	parent, cancel := context.WithCancel(g.ctx())
	t.Cleanup(cancel) // ends the goroutine at the latest
	events := make(chan event, 1)
	go func() {
		began := time.Now()
		ctx, unlock, err := m.Lock(parent)
		ended := time.Now()
		if err == nil {
			g.mu.Lock()
			g.held = append(g.held, lockResult{ctx: ctx, unlock: unlock})
			g.mu.Unlock()
		}
		events <- event{began, ended, err}
	}()
	return events
}

func (g *goActor) unlock(testing.TB, string) event {
	g.mu.Lock()
	last := g.held[len(g.held)-1]
	g.held = g.held[:len(g.held)-1]
	g.mu.Unlock()
	began := time.Now()
	err := last.unlock()
	return event{began, time.Now(), err}
}

func (g *goActor) tryInVain(t testing.TB, name string) {
	t.Helper()
	_, _, err := g.mutex(name).TryLock(g.ctx(), 0)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
}

func (g *goActor) force(t testing.TB, name string) event {
	t.Helper()
	began := time.Now()
	was, err := g.mutex(name).ForceUnlock(g.ctx())
	require.True(t, was)
	return event{began, time.Now(), err}
}

func (g *goActor) look(t testing.TB, name string) (locked bool, count int, ttl time.Duration) {
	t.Helper()
	m := g.mutex(name)
	locked = answer(m.IsLocked(g.ctx())).ok(t)
	count = answer(m.HoldCount(g.ctx())).ok(t)
	ttl = answer(m.TTL(g.ctx())).ok(t)
	answer(m.IsHeld(g.ctx())).is(t, count > 0)
	return locked, count, ttl
}

func (g *goActor) field(testing.TB, string) string { return rlock.Owner(g.ctx()) }

func (g *goActor) requireNotHeld(t testing.TB, err error) {
	t.Helper()
	require.ErrorIs(t, err, rlock.ErrNotHeld)
	require.ErrorIs(t, err, rlock.ErrLost) // every goActor had a hold
}
