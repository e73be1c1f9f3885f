package rlock

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/ear"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
)

// WithAsked lets a holder learn through [Asked] that somebody waits. From the first such hold on, the Client keeps one more subscription, which
// needs one connection of the blocking pool and, with ACLs, the channels `rlock_client:*`.
func WithAsked() Option {
	return optionFunc(func(t *tenure.Terms) { t.Wants = t.Wants.With(kinds.WantsAsked) })
}

// WithAskedAfter is [WithAsked] with a least term, in whole milliseconds: waiters who come earlier close the channel of [Asked] only when the
// hold is that old. The Lock that acquired the hold decides for all levels; an [All] takes the longest term of its locks. The handle's methods
// report a term below 1 ms.
func WithAskedAfter(term time.Duration) Option {
	after := durationOption("WithAskedAfter", term, func(t *tenure.Terms) *time.Duration { return &t.AskedAfter })
	return optionFunc(func(t *tenure.Terms) {
		WithAsked().apply(t)
		after.apply(t)
	})
}

// Asked returns a channel that is closed when a goroutine of this or another process waits for the lock. It belongs to the innermost hold in ctx
// taken [WithAsked]; without one it is nil, so never ready. It is a hint: the waiter may have given up. Redisson's are seen within a third of
// the watchdog time plus one second. A TryLock that does not wait is not seen; see [Mutex.Ask].
func Asked(ctx context.Context) <-chan struct{} { return ear.Asked(ctx) }

// Ask asks the holder for the lock, as a waiter would, but does not wait. It reports whether a holder received the message: one
// [WithAsked] or [WithLinger]. Errors and times are those of [Mutex.IsLocked].
func (m *Mutex) Ask(ctx context.Context) (heard bool, err error) {
	m.check(ctx)
	n, err := ear.AskAll(ctx, m.lock)
	return n > 0, err
}

// Ask is [Mutex.Ask] of the lock called name, of any kind.
func (c *Client) Ask(ctx context.Context, name string) (heard bool, err error) {
	return c.Mutex(name).Ask(ctx)
}
