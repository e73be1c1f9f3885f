package tenure

import (
	"context"

	"github.com/go-rlock/rlock/internal/tell"
)

// A section's ctx is cancelled by an unlock, a loss or Close. Cancelling it first ends it and everything derived from it; that is work of
// package context alone. Then it is taken off its parent, whose Done and Value are called for that: foreign code, which may block, say on
// a mutex whose owner waits for a lock. So an unlock cancels on its caller's goroutine, outside of every mutex. A loss and Close, which
// come on the goroutines that keep leases, give each cancelling a goroutine of its own, and wait for its first part only.

// Endings are the contexts that a loss or Close has cancelled.
type Endings []context.Context

// Add cancels ctx, and returns when ctx is done. A mutex may be held.
func (all *Endings) Add(ctx context.Context, foreign *tell.Each, cancel context.CancelCauseFunc, why error) {
	if ctx.Err() != nil {
		return
	}
	done := ctx.Done()
	foreign.Go(func() { cancel(why) }) // ends when the ctx is off its parent; Close waits for it, for a moment
	<-done
	*all = append(*all, ctx)
}

// Settle returns when everything derived from the contexts is done, too. No mutex is held: there may be much of it.
func (all *Endings) Settle() {
	for _, ctx := range *all {
		_ = context.Cause(ctx) // waits until the first part is over
	}
}
