package rlock

import (
	"context"

	"github.com/go-rlock/rlock/internal/engine"
)

// Detach returns a ctx that carries no holds: a Lock under it competes with the holds of ctx
// instead of re-entering them. It is for goroutines that are started inside a section but do not
// belong to it. Deadline, values and cancellation of ctx stay, so it still ends with the
// section; add [context.WithoutCancel] for one that should not.
func Detach(ctx context.Context) context.Context {
	return engine.Detached(ctx)
}

// WaitOnly returns a ctx that bounds only the waiting of a Lock. The section is not inside of it: it has the values of ctx, but ends only when it is
// unlocked or the hold is lost. Use it where the section is to go on when the caller has left:
//
//	ctx, unlock, err := m.Lock(rlock.WaitOnly(r.Context()))
//
// It works for every kind of lock, for [All], [Quorum], [Client.Adopt], semaphores, and in Do, TryDo and [DoValue]. A ctx derived from it, such as one with
// a time-out, bounds only the waiting, too. A Lock under the ctx of such a section is inside of that section as always. To bound the section, use
// [WithMaxHold], or derive a ctx with a time-out from that of the section. Under the ctx of another section it leaves that one: the section that it takes
// goes on if the other one is lost.
func WaitOnly(ctx context.Context) context.Context {
	if ctx == nil {
		panic("rlock: the ctx is nil")
	}
	return engine.WaitOnly(ctx, nil)
}

// Owner returns the owner of the innermost hold that ctx carries, of whichever lock, as it is written in Redis:
// `<client UUID>:<tag>`. Holds of one Client that follow each other, see [HandOff], and readers may have the same one. It is "" if there is none,
// or if it was lost or unlocked. It is meant for logs.
func Owner(ctx context.Context) string {
	return engine.Owner(ctx)
}

// FencingToken returns the token of the innermost hold of a lock called name that ctx carries; ok is false if there is no
// such hold, or it was not taken through [Client.FencedMutex] or the write side of a [Client.FencedRWMutex]. A reader in the section of
// such a writer has the token of that, until the writer's section ends.
//
// The token belongs to the hold, and all its levels have it. Every hold of one name has a higher token than those before it. So a store
// that refuses writes with a token lower than one it has seen is safe from holders that do not know yet that they lost the lock. The token
// stays the same after the hold has ended, but a section that begins after that, under its ctx, carries it no more, unless a section that
// was open when the hold ended lies between the two.
//
// If ctx carries locks of one name in several Redis servers, use [Mutex.FencingToken]: it tells them apart.
func FencingToken(ctx context.Context, name string) (token int64, ok bool) {
	return engine.Token(ctx, name)
}

// FencingToken returns the token of the innermost hold of this lock that ctx carries, see the package's [FencingToken].
func (m *Mutex) FencingToken(ctx context.Context) (token int64, ok bool) {
	m.check(ctx)
	return m.spec.Token(ctx)
}
