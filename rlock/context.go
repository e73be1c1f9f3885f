package rlock

import "context"

// ctxKey is the key of the innermost *level in a context.
type ctxKey struct{}

func levelOf(ctx context.Context) *level {
	if ctx == nil {
		panic("rlock: the ctx is nil")
	}
	l, _ := ctx.Value(ctxKey{}).(*level)
	return l
}

// levelIn returns the innermost open level of m that ctx carries, or nil.
func (m *spec) levelIn(ctx context.Context) *level { return openLevel(ctx, (*hold).isOf, m) }

// levelBeside returns the innermost open level of the other side of a read/write lock, or nil.
func (m *spec) levelBeside(ctx context.Context) *level { return openLevel(ctx, (*hold).isBeside, m) }

func openLevel(ctx context.Context, is func(*hold, *spec) bool, m *spec) *level {
	for l := levelOf(ctx); l != nil; l = l.outer {
		if is(l.hold, m) && l.isOpen() {
			return l
		}
	}
	return nil
}

// innermostOpen returns the innermost open level that ctx carries, of whichever lock, or nil.
func innermostOpen(ctx context.Context) *level {
	l := levelOf(ctx)
	for l != nil && !l.isOpen() {
		l = l.outer
	}
	return l
}

// carries reports whether an open hold of ctx, or a share of one of a quorum, has that owner field.
func carries(ctx context.Context, field string) bool {
	for l := levelOf(ctx); l != nil; l = l.outer {
		if l.isOpen() && l.hold.tenure.field() == field {
			return true
		}
	}
	for l := quorumLevelOf(ctx); l != nil; l = l.outer {
		if l.isOpen() && l.hold.has(field) {
			return true
		}
	}
	return false
}

// Detach returns a ctx that carries no holds: a Lock under it competes with the holds of ctx
// instead of re-entering them. It is for goroutines that are started inside a section but do not
// belong to it. Deadline, values and cancellation of ctx stay, so it still ends with the
// section; add [context.WithoutCancel] for one that should not.
func Detach(ctx context.Context) context.Context {
	return context.WithValue(context.WithValue(ctx, ctxKey{}, (*level)(nil)), quorumKey{}, (*quorumLevel)(nil))
}

// Owner returns the owner of the innermost hold that ctx carries, of whichever lock, as it is written in Redis:
// `<client UUID>:<tag>`. Holds of one Client that follow each other, see [HandOff], and readers may have the same one. It is "" if there is none,
// or if it was lost or unlocked. It is meant for logs.
func Owner(ctx context.Context) string {
	if l := levelOf(ctx); l != nil && l.hold.isLive() {
		return l.hold.tenure.field()
	}
	return ""
}

// FencingToken returns the token of the innermost hold of a lock called name that ctx carries; ok is false if there is no
// such hold, or it was not taken through [Client.FencedMutex].
//
// The token belongs to the hold, and all its levels have it. Every hold of one name has a higher token than those before it. So a store
// that refuses writes with a token lower than one it has seen is safe from holders that do not know yet that they lost the lock. The token
// stays the same after the hold has ended, but a section that begins after that, under its ctx, carries it no more.
//
// If ctx carries locks of one name in several Redis servers, use [Mutex.FencingToken]: it tells them apart.
func FencingToken(ctx context.Context, name string) (token int64, ok bool) {
	for l := levelOf(ctx); l != nil; l = l.outer {
		if l.hold.tenure.spec.name == name {
			return l.hold.fencingToken()
		}
	}
	return 0, false
}

// FencingToken returns the token of the innermost hold of this lock that ctx carries, see the package's [FencingToken].
func (m *Mutex) FencingToken(ctx context.Context) (token int64, ok bool) {
	m.check(ctx)
	for l := levelOf(ctx); l != nil; l = l.outer {
		if l.hold.isOf(m.spec) {
			return l.hold.fencingToken()
		}
	}
	return 0, false
}
