package rlock

import (
	"context"

	"github.com/go-rlock/rlock/internal/ear"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
)

// WithAsked lets a holder learn through [Asked] that somebody waits for the lock.
//
// From the first such hold until [Client.Close], the Client keeps one more subscription for all its locks. It needs one
// connection of the blocking pool and, with ACLs, the channels `rlock_client:*`. Locks taken without the option cost
// nothing more. The option belongs to the hold: the Lock that acquired it decides for all levels.
func WithAsked() Option {
	return optionFunc(func(t *tenure.Terms) { t.Wants = t.Wants.With(kinds.WantsAsked) })
}

// Asked returns a channel that is closed when a goroutine of this or another process waits for the lock. It belongs to
// the innermost hold in ctx taken with [WithAsked]; without one it is nil, so never ready. Each hold has its own channel, which its
// re-entries share.
//
// It is a hint: the waiter may have given up, and the hold lasts as long as without it. Waiters of this process are seen at once, and other
// processes of this library send a message. Waiters of Redisson are seen within a third of the watchdog time plus one
// second. Waiters from before the hold began count. A [Mutex.TryLock] that does not wait is not seen; see [Mutex.Ask].
func Asked(ctx context.Context) <-chan struct{} { return ear.Asked(ctx) }

// Ask asks the holder for the lock, as a waiter would, but does not wait. It reports whether a holder received the
// message: a hold taken with [WithAsked], or with [WithLinger], which gives the lock up if nobody is inside. Like the
// queries, it returns when ctx is done.
func (m *Mutex) Ask(ctx context.Context) (heard bool, err error) {
	m.check(ctx)
	n, err := ear.AskAll(ctx, m.lock)
	return n > 0, err
}

// Ask asks the holder of the lock called name, of any kind: see [Mutex.Ask].
func (c *Client) Ask(ctx context.Context, name string) (heard bool, err error) {
	return c.Mutex(name).Ask(ctx)
}
