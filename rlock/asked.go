package rlock

import (
	"context"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
)

// WithAsked makes a handle whose holds know if somebody waits for the lock: [Asked] tells.
//
// The Client then has one subscription more, for all of its locks, on which others speak to it; it is made when the first such hold begins, and lasts
// until [Client.Close]. It needs one connection of the blocking pool, and for users that ACLs limit the channels `rlock_client:*`. Locks that are
// taken without the option cost nothing of this. The option belongs to the hold: that of the Lock that took it applies to all levels.
func WithAsked() Option {
	return optionFunc(func(m *engine.Spec) { m.Mark = m.Mark.With(kinds.WantsAsked) })
}

// Asked returns a channel that is closed when somebody waits for the lock of the innermost hold that ctx carries and that was taken with
// [WithAsked]: a goroutine of this process, or of another one. It is nil, and so never ready, if ctx carries no such hold. Holds that follow each
// other have a channel each, and a re-entry has that of its hold.
//
//	select {
//	case <-rlock.Asked(ctx): // somebody waits: come to a good end
//	case <-ctx.Done():
//	case batch := <-work:
//	}
//
// It is a hint. Who waited may have gone when it is seen, and the hold lasts as long as without it. Waiters of this process are seen at once,
// those of this library in other processes with one message, and Redisson's, and those of older versions, within a third of the watchdog time.
// Whoever waits already when the hold begins counts. A [Mutex.TryLock] that does not wait is not seen; see [Mutex.Ask].
func Asked(ctx context.Context) <-chan struct{} { return engine.Asked(ctx) }

// Ask asks whoever holds the lock for it, as one that waits for it does, but without waiting. It reports whether a holder heard that: one whose
// hold was taken with [WithAsked], or with [WithLinger], which gives the lock up if nobody is inside. Like the queries it returns when ctx is done.
func (m *Mutex) Ask(ctx context.Context) (heard bool, err error) {
	m.check(ctx)
	n, err := m.spec.Ask(ctx)
	return n > 0, err
}

// Ask asks whoever holds the lock called name for it, of whichever kind it is: see [Mutex.Ask].
func (c *Client) Ask(ctx context.Context, name string) (heard bool, err error) {
	return c.Mutex(name).Ask(ctx)
}
