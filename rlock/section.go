package rlock

import "context"

// section is what a ctx carries of a Lock: a level of a hold, or of that of a quorum.
type section interface {
	// around is the innermost section that was open when this one was opened under its ctx; so nobody walks over those that had ended.
	around() section
	isOpen() bool
	owns(field string) bool // its hold has that owner field in Redis
	unlocks() *innerUnlocks
}

// sectionKey is the key of the innermost section in a context.
type sectionKey struct{}

// noSection stands for none, see detached.
type noSection struct{}

// sectionOf is the innermost section that ctx carries, or nil.
func sectionOf(ctx context.Context) section {
	if ctx == nil {
		panic("rlock: the ctx is nil")
	}
	s, _ := ctx.Value(sectionKey{}).(section)
	return s
}

// innermostOpen returns the innermost open section that ctx carries, of whichever lock, or nil.
func innermostOpen(ctx context.Context) section {
	s := sectionOf(ctx)
	for s != nil && !s.isOpen() {
		s = s.around()
	}
	return s
}

// carries reports whether an open hold of ctx, or a share of one of a quorum, has that owner field.
func carries(ctx context.Context, field string) bool {
	for s := sectionOf(ctx); s != nil; s = s.around() {
		if s.isOpen() && s.owns(field) {
			return true
		}
	}
	return false
}

// innermost returns s, or the next section around it, that is of type L; its zero value if there is none.
func innermost[L section](s section) (l L, ok bool) {
	for ; s != nil; s = s.around() {
		if l, ok = s.(L); ok {
			return l, true
		}
	}
	return l, false
}

// levelIn returns the innermost open level of m that ctx carries, or nil.
func (m *spec) levelIn(ctx context.Context) *level { return openLevel(ctx, (*hold).isOf, m) }

// levelBeside returns the innermost open level of the other side of a read/write lock, or nil.
func (m *spec) levelBeside(ctx context.Context) *level { return openLevel(ctx, (*hold).isBeside, m) }

func openLevel(ctx context.Context, is func(*hold, *spec) bool, m *spec) *level {
	for l := levelOf(ctx); l != nil; l = l.enclosing() {
		if is(l.hold, m) && l.isOpen() {
			return l
		}
	}
	return nil
}

// levelOf returns the innermost level that ctx carries, or nil.
func levelOf(ctx context.Context) *level {
	l, _ := innermost[*level](sectionOf(ctx))
	return l
}

// enclosing is the next level around it, or nil.
func (l *level) enclosing() *level {
	next, _ := innermost[*level](l.outer)
	return next
}

// detached is ctx without sections.
func detached(ctx context.Context) context.Context {
	return context.WithValue(ctx, sectionKey{}, noSection{}) // not nil, for which a ctx made of several would look elsewhere
}

// ownerIn is the owner of the innermost hold that ctx carries; "" if there is none, or it is over.
func ownerIn(ctx context.Context) string {
	if l := levelOf(ctx); l != nil && l.hold.isLive() {
		return l.hold.tenure.field()
	}
	return ""
}

// tokenOf is that of the innermost hold of a lock called name.
func tokenOf(ctx context.Context, name string) (token int64, ok bool) {
	return tokenIn(ctx, func(h *hold) bool { return h.tenure.spec.name == name })
}

// token is that of the innermost hold of m.
func (m *spec) token(ctx context.Context) (token int64, ok bool) {
	return tokenIn(ctx, func(h *hold) bool { return h.isOf(m) })
}

func tokenIn(ctx context.Context, of func(*hold) bool) (token int64, ok bool) {
	for l := levelOf(ctx); l != nil; l = l.enclosing() {
		if of(l.hold) {
			return l.hold.fencingToken()
		}
	}
	return 0, false
}
