package rlock

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
)

// Option changes one lock handle, see [Client.Mutex].
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

// WithMaxWait bounds how long each Lock through the handle waits: after d it returns [ErrNotAcquired], as TryLock does. It is for code
// that takes a [Locker] and only calls Lock. TryLock has its own wait. [All] and [Quorum] wait for the shortest d of their locks. A [Lead]
// then waits again. The handle's methods report a d below 1 ms.
func WithMaxWait(d time.Duration) Option {
	return durationOption("WithMaxWait", d, func(t *tenure.Terms) *time.Duration { return &t.MaxWait })
}

// WithWaitForRedis makes each Lock through the handle wait for Redis as it waits for the lock: while Redis does not answer, Lock goes on
// until its ctx is done, or a bound on its wait is over ([WithMaxWait], the wait of a TryLock). Without it, Lock fails with [ErrUnreachable]
// after three seconds. It is for code whose caller takes a failed Lock for the end, and for programs that may start before their Redis, see
// [Options].ConnectOnUse.
//
// Lock still returns when its ctx is done, with an error that is [ErrNotAcquired], ErrUnreachable and ctx.Err(). Refusals by Redis, such as
// a wrong password, and a closed Client, end it at once. It keeps its place among the waiters of its process, unless it is one of a
// semaphore; an [All] or a [Quorum] goes on if one of its locks has the option. A TryLock with a wait of 0 or less makes its one attempt.
func WithWaitForRedis() Option { return optionFunc(func(t *tenure.Terms) { t.Persists = true }) }

// WithWatchdog sets the watchdog time of holds taken through the handle, in whole milliseconds, in place of [Options].WatchdogTimeout.
// They are renewed every third of d, and if the process dies, others get the lock within d. Use a short time for short sections with many
// waiters. It may also be longer than the Client's. The handle's methods report a d below [MinWatchdogTimeout], and a combination with
// [WithLease].
//
// All levels of a hold share one lease, as long as the longest that any level needs; a re-entry never shortens it. Only goroutines with equal
// watchdog times pass a lock on in memory within a Client, and only readers with equal ones share their hold in Redis.
//
// A shorter d costs more renewals, and more holds are lost when Redis does not answer for a while: docs/operating.md has figures.
func WithWatchdog(d time.Duration) Option {
	return optionFunc(func(t *tenure.Terms) {
		if d < MinWatchdogTimeout {
			t.Invalid = fmt.Errorf("WithWatchdog is %v, want at least %v", d, MinWatchdogTimeout)
		}
		t.Watchdog = d.Truncate(time.Millisecond)
	})
}

// WithMaxHold bounds how long a hold is renewed: until d after it was acquired, in whole milliseconds. A hold that is still open then is
// lost with the reason [LostMaxHold], even if its renewals succeed. A longer lease ([WithLease]) is cut short as well. The option stops a
// hanging section from keeping the lock for ever. Others get the lock at the section's unlock, or at most a third of the watchdog time
// after d. The handle's methods report a d below 1 ms.
//
// The bound belongs to the hold: the Lock that took it sets the bound for all levels.
func WithMaxHold(d time.Duration) Option {
	return durationOption("WithMaxHold", d, func(t *tenure.Terms) *time.Duration { return &t.MaxHold })
}

// WithMinHold keeps the lock taken for at least d, in whole milliseconds. An unlock within d of Lock's return ends the hold and returns at
// once, but the lock stays taken in Redis until d is over; then a waiter gets it. Use it for jobs that many processes start at about the
// same time and only one should run. With TryLock(ctx, 0), the others are refused even if the job took no time, and even if their clocks
// differ by less than d. The handle's methods report a d below 1 ms.
//
// The option belongs to the hold: the Lock that took it decides. Until d is over, a [NotAcquiredError] names a holder with the tag 00, which
// no hold has; [Mutex.ForceUnlock] frees the lock earlier. The option is for plain and fenced locks; handles of other kinds report it as an
// error. If a holder crashes or loses its hold before the unlock, the lock stays taken until its lease expires, as usual.
func WithMinHold(d time.Duration) Option {
	return durationOption("WithMinHold", d, func(t *tenure.Terms) *time.Duration { return &t.MinHold })
}

// WithGrace keeps a lost hold in Redis for d after it is no longer trusted, in whole milliseconds. The section's ctx is cancelled as early
// as without the option, and nobody else gets in until d later. It is for sections that need a moment to stop, and for clocks that run at
// different rates. If the holder crashes, waiters also wait for d longer; an unlock frees the lock at once. The handle's methods report a
// d below 1 ms.
//
// The grace belongs to the hold: the Lock that took it sets the grace for all levels. It does not apply when somebody changes the key, for
// example with [Mutex.ForceUnlock].
func WithGrace(d time.Duration) Option {
	return durationOption("WithGrace", d, func(t *tenure.Terms) *time.Duration { return &t.Grace })
}

// WithoutReentry forbids re-entry through the handle. A Lock or TryLock whose ctx carries an open hold of the lock returns [ErrReentry] at
// once and sends nothing, whichever handle took that hold. It is for sections that must not nest, where a re-entry is a mistake in the
// program. The lock in Redis is the same, so other handles of that name share it, and may re-enter holds taken through this one.
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

// WithLease gives every level taken through the handle a fixed lease of d, in whole milliseconds. The lease is not renewed, and a hold
// that was not unlocked within d is lost. The handle's methods report a d below 1 ms.
//
// All levels of a hold share one expiry in Redis, and the hold lasts as long as its longest level needs. A re-entry neither shortens the
// lease of the section around it nor is cut short by it. A level without a lease keeps the hold renewed until that level's unlock.
func WithLease(d time.Duration) Option {
	return durationOption("WithLease", d, func(t *tenure.Terms) *time.Duration { return &t.Lease })
}

// WithLinger keeps the lock in this process after the last unlock, for up to d after its last use, in whole milliseconds. Within that
// time, a Lock by this Client gets it without asking Redis; that of a [Client.FencedMutex] asks for its token. Use it for locks that mostly
// one process uses, again and again. In Redis the lock stays held and renewed until this process gives it up.
//
// When another process of this library waits for the lock, it sends a request, and the lock is given to it at once; docs/features.md has
// the times. For a second after that, and after a Lock that had to wait for another process, the Client does not keep that name. Redisson
// cannot ask, and waits for up to d. A TryLock elsewhere that does not wait may find the lock taken although nobody is inside.
//
// Kept locks, which [Stats].Idle counts, are also given up by [Client.Close] and [Client.Shutdown], when the Client loses the connection on
// which it hears requests, when it locks the name on other terms, and, the least recently used first, when more than a thousand are kept.
// Nothing is kept before the Client listens, or if its user may not subscribe.
//
// The option is for plain and fenced locks without another option about their time. On other handles it is an error, as is a d below 1 ms.
// [All] takes handles with the option one by one.
func WithLinger(d time.Duration) Option {
	return durationOption("WithLinger", d, func(t *tenure.Terms) *time.Duration { return &t.Linger })
}
