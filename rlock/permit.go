package rlock

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/lua"
)

// mostPermits is how many permits one Acquire of a PermitSemaphore takes.
const mostPermits = 100

// PermitSemaphore is a handle on a semaphore in Redis whose permits expire: the permits of a holder that has died come back when their
// lease is over, and those of a live one are renewed, as locks are. It is Redisson's RPermitExpirableSemaphore, so Java and Go share the same
// permits; Redisson does not renew its own.
//
// An Acquire begins a section, as a Lock does: its ctx ends when the section is released, or when the permit is lost, and then [context.Cause] is
// [ErrLost]. The code in the section should stop then, for somebody else may have the permit. A permit has an id, by which others can give it back or
// change its lease, and a slot: a number from 0 on that no other live permit of this library has, below the number of permits. It tells n
// workers apart, whichever process they are in.
//
// A permit is no owner, and there is no re-entry: an Acquire under the ctx of a section takes another permit. A semaphore that was not set has no
// permits. Waiters are served as those of a [Semaphore]. Use one kind for one name: a Semaphore of the same name takes from the same number, but
// its permits do not expire, and who waits for the one kind is not woken for the other.
//
// A handle has no state of its own. Its methods are safe for concurrent use. They panic if the PermitSemaphore is nil or was not made
// by a Client, and if ctx is nil. A PermitSemaphore is no [Locker]; [PermitSemaphore.Locker] is one.
//
// In the terminology of the Go memory model, and as long as Redis keeps its data, a Release is synchronized before the return of an Acquire that
// could not have been without it, in whichever process.
type PermitSemaphore struct {
	client    *Client
	semaphore engine.PermitSemaphore
}

// PermitSemaphore returns a handle on the semaphore called name. It does no I/O. Options that are out of range, and an empty name, are
// reported by the methods of the handle. It panics if the Client is nil.
//
// Permits taken through the handle are renewed in the background until their release, unless it has a lease ([WithLease]). [WithMaxHold] and [WithGrace]
// mean what they do for locks; there is no WithMinHold, and no re-entry that WithoutReentry could rule out.
//
// Names are those of a [Semaphore], see [Client.Semaphore].
func (c *Client) PermitSemaphore(name string, options ...Option) *PermitSemaphore {
	c.check()
	m := c.semaphores.PermitSemaphore(c.prefix+name, name)
	withOptions(m.Spec, options)
	return &PermitSemaphore{c, m}
}

// Name returns the name of the semaphore.
func (s *PermitSemaphore) Name() string {
	if s == nil || s.client == nil {
		panic("rlock: a PermitSemaphore that was not made by a Client")
	}
	return s.semaphore.Name
}

func (s *PermitSemaphore) check(ctx context.Context) {
	if s.Name(); ctx == nil {
		panic("rlock: the ctx is nil")
	}
}

// fits reports an error for a number of permits that is not from least to most.
func (s *PermitSemaphore) fits(n, least, most int64) error {
	if n < least || n > most {
		return s.semaphore.Fail(fmt.Errorf("%d permits, want %d to %d", n, least, most))
	}
	return nil
}

// TrySetPermits sets the number of permits, if the semaphore was not set, and reports whether it did. n is 0 or more. Errors and times are
// those of [Semaphore.TrySetPermits].
func (s *PermitSemaphore) TrySetPermits(ctx context.Context, n int64) (bool, error) {
	s.check(ctx)
	if err := s.fits(n, 0, MaxPermits); err != nil {
		return false, err
	}
	done, err := s.semaphore.Change(ctx, lua.TrySet, n)
	return done == 1, err
}

// SetPermits makes n, which is 0 or more, the number of all permits: those that are free and those that are held. Nobody loses a permit by that:
// if more are held, nobody gets any until enough were given back. Errors and times are those of [Semaphore.TrySetPermits].
func (s *PermitSemaphore) SetPermits(ctx context.Context, n int64) error {
	s.check(ctx)
	if err := s.fits(n, 0, MaxPermits); err != nil {
		return err
	}
	_, err := s.semaphore.Change(ctx, lua.SetTotal, n)
	return err
}

// AddPermits changes the number of permits by n, which may be negative, see [Semaphore.AddPermits].
func (s *PermitSemaphore) AddPermits(ctx context.Context, n int64) error {
	s.check(ctx)
	if err := s.fits(n, -MaxPermits, MaxPermits); err != nil {
		return err
	}
	_, err := s.semaphore.Change(ctx, lua.Add, n)
	return err
}

// Acquire takes a permit, and waits for it until ctx is done. It returns the ctx of the section, a child of ctx, which is cancelled when the section
// ends: by the Permit's Release, or because the permit was lost. It sends one command. While it waits it sends nothing, but asks again when
// the next permit would expire.
//
// Acquire returns when ctx is done, whether or not Redis answers; what it is granted after that is given back. If Redis cannot be reached, or
// is not ready, it tries for three seconds after the first failure, three times at least, and fails even if ctx leaves more time.
//
// On error the given ctx comes back, and a Permit whose Release returns [ErrNotHeld]. The error satisfies errors.Is for
//
//   - [ErrNotAcquired] and ctx.Err(), if ctx was done first; for [ErrUnreachable] as well, if Redis had not answered by then.
//     The [*NotAcquiredError] has the number of free permits,
//   - [ErrUnreachable], if Redis did not answer, or was not ready,
//   - [ErrLost], if Redis took longer than the lease to answer,
//   - [ErrClosed], if the Client is closed or is being shut down,
//
// or is what Redis said. If Redis can be reached, an Acquire that failed takes nothing.
func (s *PermitSemaphore) Acquire(ctx context.Context) (context.Context, *Permit, error) {
	return s.AcquireN(ctx, 1)
}

// AcquireN is Acquire for a section that needs n permits, from 1 to 100: it gets all of them or none. They are one [Permit], since they have one
// section: if one is lost, its ctx ends, and Release gives back all that are left.
func (s *PermitSemaphore) AcquireN(ctx context.Context, n int) (context.Context, *Permit, error) {
	s.check(ctx)
	return s.acquire(engine.CallerNow(ctx).Patient(s.semaphore.MaxWait, time.Second), n)
}

// TryAcquire is Acquire with a bound on the waiting: after wait it returns [ErrNotAcquired]. If wait is 0 or less it asks once, and not at
// all if other goroutines of this process wait for permits already. Redis is given a second for its first answer, also if wait is shorter. The
// section that follows is not bounded by wait.
func (s *PermitSemaphore) TryAcquire(ctx context.Context, wait time.Duration) (context.Context, *Permit, error) {
	return s.TryAcquireN(ctx, 1, wait)
}

// TryAcquireN is TryAcquire for n permits, see [PermitSemaphore.AcquireN].
func (s *PermitSemaphore) TryAcquireN(ctx context.Context, n int, wait time.Duration) (context.Context, *Permit, error) {
	s.check(ctx)
	return s.acquire(engine.CallerNow(ctx).UpTo(wait, time.Second), n)
}

func (s *PermitSemaphore) acquire(who engine.Caller, n int) (context.Context, *Permit, error) {
	none := &Permit{of: s}
	if err := s.fits(int64(n), 1, mostPermits); err != nil {
		return who.Ctx, none, err
	}
	trace := s.client.trace.follow(&who, s.semaphore.Name, s.semaphore.Kind.Name)
	who.Trace = trace.tracer()
	h, err := s.semaphore.Acquire(who, n)
	if err != nil {
		trace.ended(who.Ctx, err, nil)
		return who.Ctx, none, err
	}
	trace.ended(h, nil, h.GiveBack)
	if trace != nil {
		h.Released = trace.released
	}
	return h, &Permit{s, h}, nil
}

// Do runs fn while it has a permit, as the Do of a lock: see [Mutex.Do]. fn gets the Permit for its id and its slot.
func (s *PermitSemaphore) Do(ctx context.Context, fn func(ctx context.Context, p *Permit) error) error {
	if fn == nil {
		panic("rlock: Do of a nil function")
	}
	var permit *Permit
	return inside(ctx, func(ctx context.Context) (context.Context, UnlockFunc, error) {
		section, p, err := s.Acquire(ctx)
		permit = p
		return section, p.Release, err
	}, func(ctx context.Context) error { return fn(ctx, permit) })
}

// Locker returns a Locker whose Lock takes n permits and whose unlock gives them back, for [DoValue] and for code that takes any Locker. Under the
// ctx of its own section it takes n more: permits are not re-entered. [All] and [Quorum] refuse it.
func (s *PermitSemaphore) Locker(n int) Locker {
	s.Name()
	return &permitLocker{s, n}
}

// permitLocker is a number of permits that expire as a Locker.
type permitLocker struct {
	of *PermitSemaphore
	n  int
}

func (l *permitLocker) Name() string { return l.of.Name() }

func (l *permitLocker) Lock(ctx context.Context) (context.Context, UnlockFunc, error) {
	ctx, p, err := l.of.AcquireN(ctx, l.n)
	return ctx, p.Release, err
}

func (l *permitLocker) TryLock(ctx context.Context, wait time.Duration) (context.Context, UnlockFunc, error) {
	ctx, p, err := l.of.TryAcquireN(ctx, l.n, wait)
	return ctx, p.Release, err
}

// Release gives the permit with that id back, whoever holds it. It is meant for operators, and for those who were handed an id; the holder itself
// calls [Permit.Release]. A holder in this Client is told at once that it has lost the permit, one in another by its next renewal, so
// within a third of the watchdog time, or at the end of a fixed lease; until then one more than there are permits may be at work.
//
// The error satisfies errors.Is for [ErrNotHeld], if there is no such permit, or it had expired. Otherwise errors and times are those of
// [Semaphore.Release], and of [Permit.Release] if the holder is in this Client: ctx may be that of its section. Without an answer, it goes on in the
// background.
func (s *PermitSemaphore) Release(ctx context.Context, id string) error {
	s.check(ctx)
	permit, err := s.id(id)
	if err != nil {
		return err
	}
	return s.semaphore.Release(ctx, permit)
}

// UpdateLease makes the permit with that id expire d from now, whoever holds it: sooner or later than it would, in whole milliseconds, or never, if d is
// [NoExpiry]. The holder's watchdog may make it longer again, but not if it is in this Client: its section ends d from now, and is
// not renewed any more. Another one that is not renewed does not know of a d that is shorter, and is told as by [PermitSemaphore.Release].
//
// It asks Redis once, and returns when ctx is done, with ctx.Err(). Without an answer the error is [ErrUnreachable], and a section in this Client that
// would have lasted longer still ends d from now. The error satisfies errors.Is for [ErrNotHeld], if there is no such permit, or it has expired.
//
// Of calls for one permit that overlap nobody knows which Redis has done last, nor when it does one that was not answered. So a section in this
// Client ends with the shortest of those.
func (s *PermitSemaphore) UpdateLease(ctx context.Context, id string, d time.Duration) error {
	s.check(ctx)
	permit, err := s.id(id)
	if err == nil && d != NoExpiry && d < time.Millisecond {
		err = s.semaphore.Fail(fmt.Errorf("a lease of %v, want at least 1ms, or NoExpiry", d))
	}
	if err != nil {
		return err
	}
	if d != NoExpiry {
		d = d.Truncate(time.Millisecond)
	}
	return s.semaphore.UpdateLease(ctx, permit, d)
}

// LeaseTime returns how long the permit with that id lasts from now on, in whole milliseconds, or [NoExpiry]. It asks Redis once, and returns
// when ctx is done, with ctx.Err(). Without an answer the error is [ErrUnreachable]; it is [ErrNotHeld], if there is no such permit, or it has expired.
func (s *PermitSemaphore) LeaseTime(ctx context.Context, id string) (time.Duration, error) {
	s.check(ctx)
	permit, err := s.id(id)
	if err != nil {
		return 0, err
	}
	return s.semaphore.LeaseTime(ctx, permit)
}

// id reads the id of a permit.
func (s *PermitSemaphore) id(text string) (id lua.PermitID, err error) {
	if n, err := hex.Decode(id[:], []byte(text[:min(len(text), 2*len(id))])); err != nil || n != len(id) || len(text) != 2*len(id) {
		return id, s.semaphore.Fail(fmt.Errorf("%s is no id of a permit, which has 32 hex digits", engine.Quote(text)))
	}
	return id, nil
}

// Available returns how many permits are free. It is below 0 if their number was lowered under the holders. It asks Redis once, and returns when ctx is
// done, with ctx.Err(). Without an answer the error is [ErrUnreachable].
func (s *PermitSemaphore) Available(ctx context.Context) (int64, error) {
	s.check(ctx)
	free, _, err := s.semaphore.Look(ctx)
	return free, err
}

// Acquired returns how many permits are held, as [PermitSemaphore.Available].
func (s *PermitSemaphore) Acquired(ctx context.Context) (int64, error) {
	s.check(ctx)
	_, held, err := s.semaphore.Look(ctx)
	return held, err
}

// Permits returns how many permits there are, free or held, as [PermitSemaphore.Available].
func (s *PermitSemaphore) Permits(ctx context.Context) (int64, error) {
	s.check(ctx)
	free, held, err := s.semaphore.Look(ctx)
	return free + held, err
}

// Permit is what an Acquire of a [PermitSemaphore] has got: one permit, or several. It is safe for concurrent use.
type Permit struct {
	of   *PermitSemaphore
	hold *engine.PermitHold // nil: its Acquire failed
}

// ID returns the id of the permit, the first if there are several: 32 hex digits, as in Redisson, the first 16 of which are those of [Client.ID]. It
// is "" if the Acquire failed.
func (p *Permit) ID() string {
	if p.hold == nil {
		return ""
	}
	return p.hold.IDs()[0]
}

// IDs returns the ids of all of them.
func (p *Permit) IDs() []string {
	if p.hold == nil {
		return nil
	}
	return p.hold.IDs()
}

// Slot returns the slot of the permit, the first if there are several: a number from 0 on, below the number of permits, that no other live permit of this
// library has. It is that of another permit when this one is released or lost. If the number of permits is lowered, those that are held keep
// their slots. It is -1 if the Acquire failed.
func (p *Permit) Slot() int {
	if p.hold == nil {
		return -1
	}
	return p.hold.Slots()[0]
}

// Slots returns the slots of all of them, in the order of the ids.
func (p *Permit) Slots() []int {
	if p.hold == nil {
		return nil
	}
	return p.hold.Slots()
}

// Release ends the section, and gives back what it has: it is an [UnlockFunc], with the errors and times of one. It waits for Redis to answer for up to
// [Options].UnlockTimeout, and goes on in the background after that. It works after [Client.Close]. The error satisfies errors.Is for
//
//   - [ErrNotHeld], if it was called before, if the Acquire failed, or, and for [ErrLost] as well, if a permit was lost,
//   - [ErrUnreachable], if Redis did not answer.
func (p *Permit) Release() error {
	if p.hold == nil {
		return p.of.semaphore.Fail(ErrNotHeld, errAcquireFailed)
	}
	return p.hold.Release()
}

// errAcquireFailed is behind the ErrNotHeld of the Permit that an Acquire which failed returns.
var errAcquireFailed = errors.New("its Acquire failed")
