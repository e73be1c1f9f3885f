package engine

import "context"

// Section is what a ctx carries of a Lock: a level of a hold, or of that of a quorum.
type Section interface {
	// Around is the innermost section that was open when this one was opened under its ctx; so nobody walks over those that had ended.
	Around() Section
	IsOpen() bool
	Owns(field string) bool // its hold has that owner field in Redis
	Unlocks() *InnerUnlocks
}

// SectionKey is the key of the innermost section in a context.
type SectionKey struct{}

// noSection stands for none, see detached.
type noSection struct{}

// SectionOf is the innermost section that ctx carries, or nil.
func SectionOf(ctx context.Context) Section {
	if ctx == nil {
		panic("rlock: the ctx is nil")
	}
	s, _ := ctx.Value(SectionKey{}).(Section)
	return s
}

// InnermostOpen returns the innermost open section that ctx carries, of whichever lock, or nil.
func InnermostOpen(ctx context.Context) Section {
	s := SectionOf(ctx)
	for s != nil && !s.IsOpen() {
		s = s.Around()
	}
	return s
}

// Carries reports whether an open hold of ctx, or a share of one of a quorum, has that owner field.
func Carries(ctx context.Context, field string) bool {
	for s := SectionOf(ctx); s != nil; s = s.Around() {
		if s.IsOpen() && s.Owns(field) {
			return true
		}
	}
	return false
}

// Innermost returns s, or the next section around it, that is of type L; its zero value if there is none.
func Innermost[L Section](s Section) (l L, ok bool) {
	for ; s != nil; s = s.Around() {
		if l, ok = s.(L); ok {
			return l, true
		}
	}
	return l, false
}

// LevelIn returns the innermost open level of m that ctx carries, or nil.
func (m *Spec) LevelIn(ctx context.Context) *Level { return openLevel(ctx, (*hold).isOf, m) }

// levelBeside returns the innermost open level of the other side of a read/write lock, or nil.
func (m *Spec) levelBeside(ctx context.Context) *Level { return openLevel(ctx, (*hold).isBeside, m) }

func openLevel(ctx context.Context, is func(*hold, *Spec) bool, m *Spec) *Level {
	for l := levelOf(ctx); l != nil; l = l.enclosing() {
		if is(l.hold, m) && l.IsOpen() {
			return l
		}
	}
	return nil
}

// levelOf returns the innermost level that ctx carries, or nil.
func levelOf(ctx context.Context) *Level {
	l, _ := Innermost[*Level](SectionOf(ctx))
	return l
}

// enclosing is the next level around it, or nil.
func (l *Level) enclosing() *Level {
	next, _ := Innermost[*Level](l.outer)
	return next
}

// Detached is ctx without sections.
func Detached(ctx context.Context) context.Context {
	return context.WithValue(ctx, SectionKey{}, noSection{}) // not nil, for which a ctx made of several would look elsewhere
}

// Owner is the owner of the innermost hold that ctx carries; "" if there is none, or it is over.
func Owner(ctx context.Context) string {
	if l := levelOf(ctx); l != nil && l.hold.isLive() {
		return l.hold.tenure.Field()
	}
	return ""
}

// Token is that of the innermost hold of a lock called name.
func Token(ctx context.Context, name string) (token int64, ok bool) {
	return tokenIn(ctx, func(h *hold) bool { return h.tenure.Spec.Name == name })
}

// Token is that of the innermost hold of m.
func (m *Spec) Token(ctx context.Context) (token int64, ok bool) {
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
