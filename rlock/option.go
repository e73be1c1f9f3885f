package rlock

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
)

// Option changes one lock handle, see [Client.Mutex].
type Option interface{ apply(*engine.Spec) }

type optionFunc func(*engine.Spec)

func (f optionFunc) apply(m *engine.Spec) { f(m) }

// withOptions is the spec of a handle with those options.
func withOptions(m *engine.Spec, options []Option) *engine.Spec {
	for _, o := range options {
		if o == nil {
			m.Invalid = m.Fail(errors.New("an option is nil"))
			break
		}
		o.apply(m)
	}
	if m.MinHold > 0 && !m.Kind.PassesOn {
		m.Invalid = m.Fail(errors.New("a lock of this kind cannot stay taken after its unlock: use WithMinHold with a Mutex"))
	}
	if m.Mark != 0 && m.Kind == kinds.PermitSemaphore {
		m.Invalid = m.Fail(errors.New("nobody waits for one permit and not for another: use WithAsked with a lock"))
	}
	if m.Name == "" {
		m.Invalid = m.Fail(errors.New("the name is empty"))
	}
	return m
}

// WithMaxHold bounds how long a hold is renewed: until d after it was acquired, in whole milliseconds. If it was not unlocked by
// then, it is lost with the reason [LostMaxHold], whatever became of its renewals. A longer lease ([WithLease]) is cut short as
// well. It keeps a section that hangs from keeping the lock for ever: others get the lock when the section's unlock is called,
// and without that at most a third of the watchdog time after d. A d below 1 ms is reported by the methods of the handle.
//
// The bound belongs to the hold: that of the Lock that took it applies to all levels, and a re-entry, through whichever handle,
// makes it neither longer nor shorter. With a d below the watchdog time, a Lock that waited in line asks Redis once more when its
// turn comes: a lock handed over by another process is renewed for the watchdog time.
func WithMaxHold(d time.Duration) Option {
	return durationOption("WithMaxHold", d, func(m *engine.Spec) *time.Duration { return &m.MaxHold })
}

// WithMinHold keeps the lock taken for at least d, in whole milliseconds. An unlock before d has passed since Lock returned ends
// the hold and returns at once, but the lock stays taken in Redis until d is over; then a waiter gets it. It is for jobs that
// many processes start at about the same time and only one should run. With TryLock(ctx, 0), the others are refused even if the
// job took no time, and even if their clocks differ, by less than d. A d below 1 ms is reported by the methods of the handle.
//
// The last unlock of the hold leaves the lock taken, if the handle of the Lock that took the hold has this option. It hands the
// lock to nobody. Until d is over, a [NotAcquiredError] names a holder with the tag 00, which no hold has; [Mutex.ForceUnlock]
// frees the lock earlier. The option is for plain and fenced locks; handles of other kinds report it as an error. A holder that
// crashes or loses its hold before the unlock keeps the lock until the end of its lease, as usual.
func WithMinHold(d time.Duration) Option {
	return durationOption("WithMinHold", d, func(m *engine.Spec) *time.Duration { return &m.MinHold })
}

// WithGrace keeps a lost hold in Redis for d longer than it is trusted, in whole milliseconds: the ctx of the section is
// cancelled as early as without it, and nobody else gets in until d later. It is for sections that need a moment to stop, and for
// clocks that run at different rates. If the holder crashes, others wait for that much longer, too; an unlock frees the lock at
// once. A d below 1 ms is reported by the methods of the handle.
//
// The grace belongs to the hold: that of the Lock that took it applies to all levels. It does not apply when somebody changes the
// key, for example with [Mutex.ForceUnlock]. A Lock that waited in line asks Redis once more when its turn comes, to be given the
// grace.
func WithGrace(d time.Duration) Option {
	return durationOption("WithGrace", d, func(m *engine.Spec) *time.Duration { return &m.Grace })
}

// WithoutReentry makes a handle that does not re-enter: a Lock or TryLock whose ctx carries an open hold of the lock returns
// [ErrReentry] at once, whichever handle took that hold, and sends nothing. It is for sections that must not nest, where a
// re-entry is a mistake in the program. In Redis the lock is the same, so other handles of that name share it, and may re-enter
// holds that were taken through this one.
func WithoutReentry() Option { return optionFunc(func(m *engine.Spec) { m.NoReentry = true }) }

// durationOption sets a time, in whole milliseconds, as Redis counts.
func durationOption(what string, d time.Duration, at func(*engine.Spec) *time.Duration) Option {
	return optionFunc(func(m *engine.Spec) {
		if d < time.Millisecond {
			m.Invalid = m.Fail(fmt.Errorf("%s is %v, want at least 1ms", what, d))
		}
		*at(m) = d.Truncate(time.Millisecond)
	})
}

// WithLease gives every level taken through the handle a fixed lease of d, in whole milliseconds. It is not renewed, and a hold
// that was not unlocked within d is lost. A d below 1 ms is reported by the methods of the handle.
//
// All levels of a hold share one expiry in Redis, and the hold lasts as long as the level that asks for most: a re-entry never
// shortens the lease of the section around it, and is not cut short by it. A level without a lease has the hold renewed until its
// unlock.
//
// The remaining lease of a reader is set again in Redis every third of the watchdog time, which makes it no longer: Redisson's
// readers may have shortened it.
func WithLease(d time.Duration) Option {
	return durationOption("WithLease", d, func(m *engine.Spec) *time.Duration { return &m.Lease })
}
