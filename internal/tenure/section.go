package tenure

import (
	"context"
	"sync/atomic"
	"time"
)

// Section is a ctx's record of a Lock or an Acquire: a level of a hold, or permits.
type Section interface {
	// Around returns the innermost section that was open in ctx when this one began. Skipping ended sections keeps walks short.
	Around() Section
	IsOpen() bool
	Owns(field string) bool // field is its hold's owner field in Redis
	Unlocks() *InnerUnlocks
	// TrustedUntil returns the end of its hold's lease; zero once the hold was lost. ok is false if it has none.
	TrustedUntil() (until time.Time, ok bool)
}

// Frame is what sections of all kinds have.
type Frame struct {
	Within Section // see Section.Around
	Inner  InnerUnlocks
	// Released traces the end of the section: it calls end and returns its error; nil: no tracing.
	Released func(end func() error) error
}

// Around returns the enclosing section.
func (f *Frame) Around() Section { return f.Within }

// Unlocks returns the time taken by unlocks inside the section.
func (f *Frame) Unlocks() *InnerUnlocks { return &f.Inner }

// SectionKey is the key of the innermost section in a context.
type SectionKey struct{}

// SectionValue is the Value of the ctx of s, whose parent is ctx: it makes s the innermost section.
func SectionValue(ctx context.Context, s Section, key any) any {
	switch key.(type) {
	case SectionKey:
		return s
	case WaitOnlyKey: // a waitOnly further out bounds another wait; it also stops most searches here
		return nil
	}
	return ctx.Value(key)
}

// noSection stands for no section, see Detached.
type noSection struct{}

// SectionOf returns the innermost section that ctx carries, or nil.
func SectionOf(ctx context.Context) Section {
	if ctx == nil {
		panic("rlock: the ctx is nil")
	}
	s, _ := ctx.Value(SectionKey{}).(Section)
	return s
}

// InnermostOpen returns the innermost open section of any lock that ctx carries, or nil.
func InnermostOpen(ctx context.Context) Section {
	s := SectionOf(ctx)
	for s != nil && !s.IsOpen() {
		s = s.Around()
	}
	return s
}

// Carries reports whether an open hold in ctx, or one of a quorum hold's shares, has that owner field.
func Carries(ctx context.Context, field string) bool {
	for s := SectionOf(ctx); s != nil; s = s.Around() {
		if s.IsOpen() && s.Owns(field) {
			return true
		}
	}
	return false
}

// TrustedUntil returns until when all open holds in ctx are trusted; the zero time if one was lost. ok is false if there is none.
func TrustedUntil(ctx context.Context) (until time.Time, ok bool) {
	for s := SectionOf(ctx); s != nil; s = s.Around() {
		if !s.IsOpen() {
			continue
		}
		if end, leased := s.TrustedUntil(); leased && (!ok || end.Before(until)) {
			until, ok = end, true
		}
	}
	return until, ok
}

// Detached returns ctx without sections.
func Detached(ctx context.Context) context.Context {
	return context.WithValue(ctx, SectionKey{}, noSection{}) // not nil: a merged ctx would look in its other parents
}

// soonAfter is how soon after an inner unlock the outer one must begin for the inner one's time to count against it.
const soonAfter = time.Second

// InnerUnlocks is the time just spent on unlocks inside a section. It is taken off the time for the section's own unlock.
type InnerUnlocks struct{ latest atomic.Pointer[spentTime] }

// spentTime is the total time of successive unlocks.
type spentTime struct {
	took  time.Duration
	until time.Time
}

// Spent returns the total if the last unlock ended within soonAfter, or 0.
func (i *InnerUnlocks) Spent(now time.Time) time.Duration {
	if s := i.latest.Load(); s != nil && now.Sub(s.until) <= soonAfter {
		return s.took
	}
	return 0
}

// Add adds an unlock, less its overlap with earlier ones. If two end at the same moment, one may go uncounted.
func (i *InnerUnlocks) Add(began, now time.Time) {
	before := i.Spent(began)
	if s := i.latest.Load(); s != nil && s.until.After(began) {
		began = s.until
	}
	i.latest.Store(&spentTime{before + max(now.Sub(began), 0), now})
}
