package rlock

import (
	"context"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
)

// WithAsked lets a holder learn that somebody waits for the lock, through [Asked].
//
// From the first such hold until [Client.Close], the Client has one more subscription, for all its locks. It needs one connection of the
// blocking pool, and with ACLs the channels `rlock_client:*`. Locks that are taken without the option cost nothing more. The option belongs to the
// hold: that of the Lock that took it applies to all levels.
func WithAsked() Option {
	return optionFunc(func(m *engine.Spec) { m.Mark = m.Mark.With(kinds.WantsAsked) })
}

// Asked returns a channel that is closed when a goroutine of this or another process waits for the lock. It is that of the innermost hold in ctx
// that was taken with [WithAsked], and nil, so never ready, if there is none. Each hold has its own channel; a re-entry shares that of its hold.
//
//	select {
//	case <-rlock.Asked(ctx): // somebody waits: come to a good end
//	case <-ctx.Done():
//	case batch := <-work:
//	}
//
// It is a hint: the waiter may have given up, and the hold lasts as long as without it. Waiters of this process are seen at once, those of this
// library in other processes with one message. Redisson's, and those of older versions, are seen within a third of the watchdog time and a second.
// Waiters from before the hold began count. A [Mutex.TryLock] that does not wait is not seen; see [Mutex.Ask].
func Asked(ctx context.Context) <-chan struct{} { return engine.Asked(ctx) }

// Ask asks the holder for the lock, as a waiter would, but without waiting. It reports whether a holder got the message: one whose hold was
// taken with [WithAsked], or with [WithLinger], which gives the lock up if nobody is inside. Like the queries it returns when ctx is done.
func (m *Mutex) Ask(ctx context.Context) (heard bool, err error) {
	m.check(ctx)
	n, err := m.spec.Ask(ctx)
	return n > 0, err
}

// Ask asks the holder of the lock called name, of any kind: see [Mutex.Ask].
func (c *Client) Ask(ctx context.Context, name string) (heard bool, err error) {
	return c.Mutex(name).Ask(ctx)
}
