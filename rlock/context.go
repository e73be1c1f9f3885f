package rlock

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/tenure"
)

// Detach returns a ctx that carries no holds: a Lock under it competes with the holds of ctx. Use it for goroutines started inside a section
// that do not belong to it. The rest of ctx stays, so it still ends with the section; add [context.WithoutCancel] to outlive it.
func Detach(ctx context.Context) context.Context {
	return tenure.Detached(ctx)
}

// WaitOnly returns a ctx that bounds only the waiting of a Lock, not the section, which has the values of ctx but ends only by unlock or loss.
// Use it where the section must continue after the caller, or the section of ctx, has ended:
//
//	ctx, unlock, err := m.Lock(rlock.WaitOnly(r.Context()))
//
// It works for every call that waits for a lock or permits, and [Client.Adopt]. A ctx derived from it also bounds only the waiting. To bound the
// section, use [WithMaxHold], or a timeout on its ctx.
func WaitOnly(ctx context.Context) context.Context {
	needs(ctx)
	return tenure.WaitOnly(ctx, nil)
}

func needs(ctx context.Context) {
	if ctx == nil {
		panic("rlock: the ctx is nil")
	}
}

// TrustedUntil returns the time until which all holds that ctx carries are trusted: the end of the last confirmed lease, by this process's
// clock, without asking Redis. It is zero if one was lost; ok is false if ctx carries no open hold with a lease. After a pause, time.Now() is
// past it at once, while ctx may take some milliseconds to end: look at it right before a step that others must not see twice.
func TrustedUntil(ctx context.Context) (until time.Time, ok bool) { return tenure.TrustedUntil(ctx) }

// Owner returns the owner of the innermost hold in ctx, of any lock, as in Redis: `<client UUID>:<tag>`; "" if ctx carries no open hold. It is
// meant for logs: readers, and consecutive holds of one Client, may share it.
func Owner(ctx context.Context) string {
	return tenure.Owner(ctx)
}

// FencingToken returns the token of the innermost hold in ctx of the lock called name; ok is false without such a hold, or a token. All levels
// of a hold have the same token, also after its end, and it is higher than that of every earlier hold of the name. If ctx carries locks of one
// name in several servers, use [Mutex.FencingToken].
func FencingToken(ctx context.Context, name string) (token int64, ok bool) {
	return tenure.Token(ctx, name)
}

// FencingToken is the function [FencingToken] for this lock.
func (m *Mutex) FencingToken(ctx context.Context) (token int64, ok bool) {
	m.check(ctx)
	return m.lock.Token(ctx)
}
