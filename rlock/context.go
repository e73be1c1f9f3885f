package rlock

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/tenure"
)

// Detach returns a ctx that carries no holds: a Lock under it competes with the holds of ctx
// instead of re-entering them. Use it for goroutines started inside a section that do not
// belong to it. Deadline, values and cancellation of ctx stay, so the result still ends with the
// section; add [context.WithoutCancel] to outlive it.
func Detach(ctx context.Context) context.Context {
	return tenure.Detached(ctx)
}

// WaitOnly returns a ctx that bounds only the waiting of a Lock, not the section. The section has the values of ctx, but
// ends only by unlock or loss. Use it where the section must continue after the caller has left:
//
//	ctx, unlock, err := m.Lock(rlock.WaitOnly(r.Context()))
//
// It works for every kind of lock, [All], [Quorum], [Client.Adopt] and semaphores, and in Do, TryDo and [DoValue]. A ctx
// derived from it, for example with a timeout, also bounds only the waiting. To bound the section, use [WithMaxHold], or derive a ctx with a
// timeout from the section's ctx. Used under another section's ctx, the new section continues even if the other hold is lost.
func WaitOnly(ctx context.Context) context.Context {
	if ctx == nil {
		panic("rlock: the ctx is nil")
	}
	return tenure.WaitOnly(ctx, nil)
}

// TrustedUntil returns the time until which all holds that ctx carries are trusted, without asking Redis: the end of the last confirmed
// lease, by this process's clock. The zero time means that one was lost. ok is false if ctx carries no open hold with a lease.
//
// A process that was paused beyond the lease may see ctx end some milliseconds after it resumes; time.Now() is past this time at once. So
// look at it right before a step that others must not see twice. A write on its way can still be paused: see [Client.FencedMutex].
func TrustedUntil(ctx context.Context) (until time.Time, ok bool) { return tenure.TrustedUntil(ctx) }

// Owner returns the owner of the innermost hold in ctx, of any lock, as Redis stores it:
// `<client UUID>:<tag>`. Readers, and consecutive holds of one Client (see [HandOff]), may share an owner. It is "" if ctx
// carries no hold, or if the hold was lost or unlocked. It is meant for logs.
func Owner(ctx context.Context) string {
	return tenure.Owner(ctx)
}

// FencingToken returns the token of the innermost hold in ctx of the lock called name. ok is false if there is no
// such hold, or if it was not taken through [Client.FencedMutex] or the write side of a [Client.FencedRWMutex]. A reader
// inside such a writer's section has the writer's token until that section ends.
//
// The token belongs to the hold and is the same at all its levels, also after its end. Each hold of a name has a higher token than every
// earlier hold. A section that begins under that ctx after the hold's end no longer carries it, unless a section that was open when the
// hold ended lies between the two.
//
// If ctx carries locks of one name in several Redis servers, use [Mutex.FencingToken] to tell them apart.
func FencingToken(ctx context.Context, name string) (token int64, ok bool) {
	return tenure.Token(ctx, name)
}

// FencingToken returns the token of the innermost hold of this lock in ctx, see the package's [FencingToken].
func (m *Mutex) FencingToken(ctx context.Context) (token int64, ok bool) {
	m.check(ctx)
	return m.lock.Token(ctx)
}
