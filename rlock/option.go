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

// withOptions applies options to the spec of a handle.
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
	if err := lingers(m); err != nil {
		m.Invalid = m.Fail(err)
	}
	if m.Mark != 0 && m.Kind == kinds.PermitSemaphore {
		m.Invalid = m.Fail(errors.New("WithAsked is for locks: nobody waits for one particular permit"))
	}
	if m.Watchdog > 0 && m.Lease > 0 {
		m.Invalid = m.Fail(errors.New("WithWatchdog is for holds that are renewed, and WithLease for those that are not: use one of them"))
	}
	if m.Name == "" {
		m.Invalid = m.Fail(errors.New("the name is empty"))
	}
	return m
}

// lingers returns an error if a handle has WithLinger and cannot keep its lock.
func lingers(m *engine.Spec) error {
	o := &m.Engine.Options
	switch {
	case m.Linger == 0:
	case !m.Kind.PassesOn:
		return errors.New("a lock of this kind cannot be kept when nobody holds it: use WithLinger with a Mutex or a FencedMutex")
	case m.Lease > 0, m.MaxHold > 0, m.MinHold > 0, m.Grace > 0:
		return errors.New("WithLinger keeps a lock on the usual terms: use it without WithLease, WithMaxHold, WithMinHold and WithGrace")
	case o.Replicas > 0, o.HandOff.Most == 0:
		return errors.New("WithLinger hands a lock over inside the process: use it without Options.Replicas, and with Options.HandOff.Most of 0 or more")
	}
	return nil
}

// WithMaxWait bounds the waiting of each Lock through the handle: after d it returns [ErrNotAcquired], as TryLock does. It is for
// code that takes a [Locker] and only calls Lock. A TryLock has its own wait. [All] and [Quorum] wait for the shortest d of
// their locks. A [Lead] ends if its Lock has waited for d. The methods of the handle report a d below 1 ms.
func WithMaxWait(d time.Duration) Option {
	return durationOption("WithMaxWait", d, func(m *engine.Spec) *time.Duration { return &m.MaxWait })
}

// WithWatchdog sets the watchdog time of the holds taken through the handle, in place of [Options].WatchdogTimeout: they are renewed every third of d,
// and if the process dies, others get the lock within d. Use a short time for short sections with many waiters. It may also be longer than the
// Client's. It is in whole milliseconds. The methods of the handle report a d below [MinWatchdogTimeout], and a combination with [WithLease].
//
// All levels of a hold share one lease, which is as long as its longest level needs. A re-entry through a handle with a longer watchdog time
// asks Redis for that time, and keeps it until its unlock; a shorter time changes nothing. A lease that is already
// longer is never shortened.
//
// Goroutines of one Client pass a lock on in memory, and readers share what they have in Redis, only if their watchdog times are the same; others ask
// Redis. A Lock that waited in line with a d below two seconds, and below the Client's time, asks Redis once more when its turn comes.
//
// A shorter d costs more renewals, and more is lost when Redis does not answer for a while: docs/operating.md has figures. The first waiter of each
// process asks once a watchdog time, too.
func WithWatchdog(d time.Duration) Option {
	return optionFunc(func(m *engine.Spec) {
		if d < MinWatchdogTimeout {
			m.Invalid = m.Fail(fmt.Errorf("WithWatchdog is %v, want at least %v", d, MinWatchdogTimeout))
		}
		m.Watchdog = d.Truncate(time.Millisecond)
	})
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

// WithLinger keeps the lock in this process after the last unlock, for up to d after its last use, in whole milliseconds. A Lock by this Client within
// that time gets it without asking Redis, within microseconds instead of two round trips. Use it for locks that mostly one process uses, again and
// again. In Redis the lock is held, and renewed, until it is given up.
//
// Another process of this library that waits for the lock asks for it with a message, and is given it at once: about two round trips later than if
// it had been free, three at most. For a second after that, and after a Lock that had to wait for another process, that name is not kept.
// Redisson and older versions of this library cannot ask, and wait for up to d. If the process dies, others wait for the rest of the lease, as
// for any hold. A TryLock elsewhere that does not wait may find the lock taken though nobody is inside.
//
// Kept locks, which [Stats].Idle counts, are also given up
//
//   - by [Client.Close] and [Client.Shutdown],
//   - when the Client loses the connection on which it hears requests,
//   - when this Client locks the name on other terms, for example with WithLease,
//   - when more than a thousand locks of the Client are kept: the least recently used goes first.
//
// Nothing is kept before the Client listens, or if its user may not subscribe.
//
// If a kept lock is deleted or forced open, the next renewal notices; until then a Lock may get it, as with a hand-off. Tokens of a
// [Client.FencedMutex] are reserved a thousand at a time, and unused ones are skipped.
//
// The option is for plain and fenced locks without another option about their time. On others it is an error, as is a d below 1 ms.
// [All] takes handles with the option one by one.
func WithLinger(d time.Duration) Option {
	return durationOption("WithLinger", d, func(m *engine.Spec) *time.Duration { return &m.Linger })
}
