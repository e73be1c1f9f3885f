package engine

import (
	"context"
	"sync/atomic"
	"time"
)

// Section is what a ctx carries of a Lock or of an Acquire: a level of a hold, or permits that expire.
type Section interface {
	// Around is the innermost section that was open when this one was opened under its ctx; so nobody walks over those that had ended.
	Around() Section
	IsOpen() bool
	Owns(field string) bool // its hold has that owner field in Redis
	Unlocks() *InnerUnlocks
}

// SectionKey is the key of the innermost section in a context.
type SectionKey struct{}

// noSection stands for none, see Detached.
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

// Detached is ctx without sections.
func Detached(ctx context.Context) context.Context {
	return context.WithValue(ctx, SectionKey{}, noSection{}) // not nil, for which a ctx made of several would look elsewhere
}

// soonAfter is how soon after an unlock the sections around it have to be unlocked for its time to be taken off theirs.
const soonAfter = time.Second

// InnerUnlocks is the time that the unlocks inside a section have just taken. It is taken off the time of its own unlock.
type InnerUnlocks struct{ latest atomic.Pointer[spentTime] }

// spentTime is what unlocks took, one after the other.
type spentTime struct {
	took  time.Duration
	until time.Time
}

// spent is what they took if that was just now.
func (i *InnerUnlocks) spent(now time.Time) time.Duration {
	if s := i.latest.Load(); s != nil && now.Sub(s.until) <= soonAfter {
		return s.took
	}
	return 0
}

// add adds one, but for the time that it has in common with others. Of two that end in the same moment one may be forgotten.
func (i *InnerUnlocks) add(began, now time.Time) {
	before := i.spent(began)
	if s := i.latest.Load(); s != nil && s.until.After(began) {
		began = s.until
	}
	i.latest.Store(&spentTime{before + max(now.Sub(began), 0), now})
}
