package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/rlock"
)

// G3: a hold with WithAsked learns of waiters of both sides, also of those that were there before it began. Its Clients are told: they would
// look for waiters only after a third of an hour.
func asked(t *testing.T, p *place, a, b rlock.Locker) {
	notAsked := func(ctx context.Context) {
		t.Helper()
		select {
		case <-rlock.Asked(ctx):
			t.Fatal("nobody waits")
		default:
		}
	}
	awaitAsked := func(ctx context.Context) {
		t.Helper()
		select {
		case <-rlock.Asked(ctx):
		case <-time.After(atMost):
			t.Fatal("not asked")
		}
	}
	for _, waiters := range [][]rlock.Locker{{a}, {b}, {a, a}, {a, b}, {b, a}} {
		ctx, unlock, err := a.Lock(p.ctx)
		require.NoError(t, err)
		notAsked(ctx)
		result := make(chan attempt, len(waiters))
		for _, l := range waiters {
			waiter := lockAsync(t, l)
			awaitAsked(ctx)
			waiter.stillWaits(t)
			go func() { result <- <-waiter.result }() // ends with the Lock
		}
		<-time.After(10 * time.Millisecond) // the last one is on its way
		require.NoError(t, unlock())
		require.True(t, rlock.Asked(ctx) == nil, "the hold has ended")
		for i := range waiters {
			got := <-result
			require.NoError(t, got.err)
			if i < len(waiters)-1 {
				awaitAsked(got.ctx)
			} else {
				notAsked(got.ctx)
			}
			require.NoError(t, got.unlock())
		}
	}
}

const askedTerm = 100 * time.Millisecond

// G3: a hold with WithAskedAfter learns of waiters of both sides when its term is over, and not earlier.
func askedAfter(t *testing.T, _ *place, a, b rlock.Locker) {
	for _, waits := range []rlock.Locker{a, b} {
		before := time.Now()
		h, err := rlock.Acquire(t.Context(), a)
		require.NoError(t, err)
		waiter := lockAsync(t, waits)
		select {
		case <-h.Asked():
		case <-time.After(atMost):
			t.Fatal("not asked")
		}
		require.GreaterOrEqual(t, time.Since(before), askedTerm)
		require.NoError(t, h.Unlock())
		got := <-waiter.result
		require.NoError(t, got.err)
		require.NoError(t, got.unlock())
	}
}

// G1, G4: a hold moves to the other side. Until its unlock there, nobody else gets in; then the waiters of both sides do.
func export(t *testing.T, p *place, a, b rlock.Locker) {
	ctx, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	waiters := []pending{p.lockAndWait(t, b), lockAsync(t, a)}
	<-time.After(100 * time.Millisecond) // they know how long the lease lasts
	ticket, err := rlock.Export(ctx, rlock.WithTicketTime(time.Hour))
	require.NoError(t, err)
	require.ErrorIs(t, context.Cause(ctx), rlock.ErrExported)
	require.NoError(t, unlock())
	p.refused(p.ctx, t, a)
	section, unlock, err := p.clients[1][0].Adopt(p.ctx, ticket)
	require.NoError(t, err)
	for _, c := range []*rlock.Client{p.clients[0][0], p.clients[1][0]} {
		_, again, err := c.Adopt(p.ctx, ticket)
		require.ErrorIs(t, err, rlock.ErrTicket)
		require.ErrorIs(t, again(), rlock.ErrNotHeld)
	}
	p.refused(p.ctx, t, a)
	waiters[0].stillWaits(t)
	waiters[1].stillWaits(t)
	require.NoError(t, section.Err())
	require.NoError(t, unlock())
	enterInTurn(t, waiters, longWatchdog/3)
}

// enterInTurn lets waiters get the lock in any order, each in time. It returns when the first one did.
func enterInTurn(t *testing.T, waiters []pending, within time.Duration) (first time.Time) {
	t.Helper()
	result := make(chan attempt)
	for _, w := range waiters {
		go func() { result <- <-w.result }() // ends with the Lock
	}
	for i := range waiters {
		select {
		case got := <-result:
			if i == 0 {
				first = time.Now()
			}
			require.NoError(t, got.err)
			require.NoError(t, got.unlock())
		case <-time.After(within):
			t.Fatal("nobody gets in")
		}
	}
	return first
}

// G4: waiters of both sides learn how long a ticket lasts, and get in when it expires.
func ticketExpires(t *testing.T, p *place, a, b rlock.Locker) {
	const lasts = time.Second
	ctx, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	waiters := []pending{p.lockAndWait(t, b), lockAsync(t, a)}
	<-time.After(100 * time.Millisecond) // they know how long the lease lasts
	began := time.Now()
	ticket, err := rlock.Export(ctx, rlock.WithTicketTime(lasts))
	require.NoError(t, err)
	require.NoError(t, unlock())
	first := enterInTurn(t, waiters, lasts+2*courtesy+p.d.Soon)
	require.GreaterOrEqual(t, first.Sub(began), lasts)
	_, _, err = p.clients[1][0].Adopt(p.ctx, ticket)
	require.ErrorIs(t, err, rlock.ErrTicket)
}
