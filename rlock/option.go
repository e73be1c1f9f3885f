package rlock

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
)

// Option changes one lock handle, see [Client.Mutex]. Times are in whole milliseconds; the handle's methods report one below 1 ms, and an option
// that its kind, or another option, rules out (docs/locks.md). The options of the Lock that took a hold are those of all its levels, but of
// [WithLease] and [WithWatchdog] the longest of an open level counts.
type Option interface{ apply(*tenure.Terms) }

type optionFunc func(*tenure.Terms)

func (f optionFunc) apply(t *tenure.Terms) { f(t) }

// terms returns those of a handle of that kind with the options.
func (c *Client) terms(k *kinds.Kind, name string, options []Option) (t tenure.Terms) {
	for _, o := range options {
		if o == nil {
			t.Invalid = errors.New("an option is nil")
			break
		}
		o.apply(&t)
	}
	if t.MinHold > 0 && !k.PlainScripts {
		t.Invalid = errors.New("a lock of this kind cannot stay taken after its unlock: use WithMinHold with a Mutex")
	}
	if err := c.lingers(k, &t); err != nil {
		t.Invalid = err
	}
	if t.Wants != 0 && k == kinds.PermitSemaphore {
		t.Invalid = errors.New("WithAsked is for locks: nobody waits for one particular permit")
	}
	if t.Watchdog > 0 && t.Lease > 0 {
		t.Invalid = errors.New("WithWatchdog is for holds that are renewed, and WithLease for those that are not: use one of them")
	}
	if name == "" {
		t.Invalid = errors.New("the name is empty")
	}
	return t
}

// lingers returns an error if a handle has WithLinger and cannot keep its lock.
func (c *Client) lingers(k *kinds.Kind, t *tenure.Terms) error {
	o := &c.engine.Options
	switch {
	case t.Linger == 0:
	case !k.PlainScripts:
		return errors.New("a lock of this kind cannot be kept when nobody holds it: use WithLinger with a Mutex or a FencedMutex")
	case t.Lease > 0, t.MaxHold > 0, t.MinHold > 0, t.Grace > 0:
		return errors.New("WithLinger keeps a lock on the usual terms: use it without WithLease, WithMaxHold, WithMinHold and WithGrace")
	case o.Replicas > 0, o.HandOff.Most == 0:
		return errors.New("WithLinger hands a lock over inside the process: use it without Options.Replicas, and with Options.HandOff.Most of 0 or more")
	}
	return nil
}

// WithMaxWait bounds the wait of each Lock, not TryLock, through the handle: after d it returns [ErrNotAcquired]. [All] and [Quorum] wait for
// the shortest d of their locks.
func WithMaxWait(d time.Duration) Option {
	return durationOption("WithMaxWait", d, func(t *tenure.Terms) *time.Duration { return &t.MaxWait })
}

// WithWaitForRedis makes each Lock through the handle wait for Redis as it waits for the lock: until its ctx is done or a bound on its wait is
// over. Refusals by Redis, such as a wrong password, a [WithLease] too short for the network ([ErrLost]), and a closed Client end it at once.
// An [All] or a [Quorum] waits if one of its locks has the option; a TryLock with a wait of 0 or less does not.
func WithWaitForRedis() Option { return optionFunc(func(t *tenure.Terms) { t.Persists = true }) }

// WithWatchdog sets the watchdog time of holds taken through the handle, in place of [Options].WatchdogTimeout; at least [MinWatchdogTimeout]. A
// shorter d costs more renewals, and more holds are lost when Redis does not answer for a while: docs/operating.md has figures.
func WithWatchdog(d time.Duration) Option {
	return optionFunc(func(t *tenure.Terms) {
		if d < MinWatchdogTimeout {
			t.Invalid = fmt.Errorf("WithWatchdog is %v, want at least %v", d, MinWatchdogTimeout)
		}
		t.Watchdog = d.Truncate(time.Millisecond)
	})
}

// WithMaxHold bounds a hold, for sections that may hang: d after it was acquired it is lost with the reason [LostMaxHold]. Others get the lock
// at the section's unlock, or at most a third of the watchdog time after d.
func WithMaxHold(d time.Duration) Option {
	return durationOption("WithMaxHold", d, func(t *tenure.Terms) *time.Duration { return &t.MaxHold })
}

// WithMinHold keeps the lock taken for at least d: an unlock within d of Lock's return ends the hold and returns at once, but a waiter gets the
// lock only when d is over, or by [Mutex.ForceUnlock]. Use it with TryLock(ctx, 0) for jobs of which one of many processes should run each, if
// their clocks differ by less than d.
func WithMinHold(d time.Duration) Option {
	return durationOption("WithMinHold", d, func(t *tenure.Terms) *time.Duration { return &t.MinHold })
}

// WithGrace keeps a lost hold in Redis for d after it is no longer trusted: the section's ctx is cancelled as early as without the option, and
// nobody else gets in until d later, also after a crash. It is for sections that need a moment to stop, and for clocks that run at different
// rates. If somebody changes the key, there is no grace.
func WithGrace(d time.Duration) Option {
	return durationOption("WithGrace", d, func(t *tenure.Terms) *time.Duration { return &t.Grace })
}

// WithoutReentry makes a Lock through the handle return [ErrReentry] at once if its ctx carries an open hold of the lock, taken through any
// handle. Other handles of that name may still re-enter.
func WithoutReentry() Option { return optionFunc(func(t *tenure.Terms) { t.NoReentry = true }) }

// durationOption sets a time, in whole milliseconds, as Redis counts.
func durationOption(what string, d time.Duration, at func(*tenure.Terms) *time.Duration) Option {
	return optionFunc(func(t *tenure.Terms) {
		if d < time.Millisecond {
			t.Invalid = fmt.Errorf("%s is %v, want at least 1ms", what, d)
		}
		*at(t) = d.Truncate(time.Millisecond)
	})
}

// WithLease gives every level taken through the handle a fixed lease of d, which is not renewed. A level without a lease keeps the hold renewed.
func WithLease(d time.Duration) Option {
	return durationOption("WithLease", d, func(t *tenure.Terms) *time.Duration { return &t.Lease })
}

// WithLinger keeps the lock in this process after the last unlock, renewed, for up to d after its last use. Until then a Lock by this Client
// gets it without asking Redis, or only for its token. It is for locks that mostly one process uses.
//
// When another process of this library waits, it asks, and gets the lock at once. Redisson cannot ask, and waits for up to d; a TryLock
// elsewhere that does not wait may be refused although nobody is inside. docs/features.md has the times and the limits.
func WithLinger(d time.Duration) Option {
	return durationOption("WithLinger", d, func(t *tenure.Terms) *time.Duration { return &t.Linger })
}
