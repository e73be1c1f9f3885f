package rlock

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/counter"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lua"
)

// mostPermits bounds the permits of one Acquire of a PermitSemaphore.
const mostPermits = 100

// PermitSemaphore is a handle on a semaphore in Redis whose permits expire. A live holder's permits are renewed, as locks are; a dead
// holder's come back when their lease expires. It is Redisson's RPermitExpirableSemaphore, so Java and Go share the same permits; Redisson
// does not renew its own.
//
// An Acquire begins a section, as a Lock does. Its ctx is cancelled when the section is released, or when the permit is lost, and then
// [context.Cause] is [ErrLost]. The code in the section should then stop, for another holder may have the permit.
//
// A permit has an id, with which others can give it back or change its lease, and a slot, see [Permit.Slot].
//
// There is no re-entry: an Acquire under the ctx of a section takes another permit. A semaphore that was never set has no permits. Waiters
// are served as those of a [Semaphore]. Use one kind for one name: a Semaphore of the same name takes from the same number, but waiters
// for one kind are not woken for the other.
//
// A handle has no state of its own. Its methods are safe for concurrent use. They panic if the PermitSemaphore is nil or was not made
// by a Client, and if ctx is nil. A PermitSemaphore is not a [Locker]; [PermitSemaphore.Locker] returns one.
//
// In the terminology of the Go memory model, a Release is synchronized before the return of any Acquire that could not have succeeded
// without it. This holds across processes, as long as Redis keeps its data.
type PermitSemaphore struct {
	client    *Client
	semaphore counter.PermitSemaphore
}

// PermitSemaphore returns a handle on the semaphore called name. It does no I/O. The handle's methods report options that are out of
// range, and an empty name. It panics if the Client is nil.
//
// Permits taken through the handle are renewed in the background until their release, unless it has a lease ([WithLease]). [WithMaxHold]
// and [WithGrace] mean the same as for locks. There is no WithMinHold, and no re-entry for WithoutReentry to forbid.
//
// Names follow the rules of [Client.Semaphore].
func (c *Client) PermitSemaphore(name string, options ...Option) *PermitSemaphore {
	c.check()
	return &PermitSemaphore{c, c.counters.PermitSemaphore(c.prefix+name, name, c.terms(kinds.PermitSemaphore, name, options))}
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

// SetPermits sets the number of all permits, free and held, to n, which is 0 or more. No holder loses a permit: if more than n are held,
// nobody gets one until enough were given back. Errors and times are those of [Semaphore.TrySetPermits].
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

// Acquire takes a permit, and waits for it until ctx is done. It returns the section's ctx, a child of ctx, which is cancelled when the
// section ends: by the Permit's Release, or because the permit was lost. It sends one command. It sends nothing while it waits, except to
// ask again when the next permit would expire.
//
// On error Acquire returns the given ctx, and a Permit whose Release returns [ErrNotHeld]. Errors and times are those of
// [Semaphore.Acquire]; the error is [ErrLost] if Redis took longer than the lease to answer.
func (s *PermitSemaphore) Acquire(ctx context.Context) (context.Context, *Permit, error) {
	return s.AcquireN(ctx, 1)
}

// AcquireN is Acquire for a section that needs n permits, from 1 to 100: it gets all of them or none. They form one [Permit], because they
// share one section: if one is lost, its ctx is cancelled, and Release gives back all that are left.
func (s *PermitSemaphore) AcquireN(ctx context.Context, n int) (context.Context, *Permit, error) {
	s.check(ctx)
	return s.acquire(tenure.CallerNow(ctx).Patient(s.semaphore.MaxWait, time.Second).Persistent(s.semaphore.Persists), n)
}

// TryAcquire is Acquire with a bound on the waiting: after wait it returns [ErrNotAcquired]. If wait is 0 or less it asks once, and not at
// all if other goroutines of this process already wait for permits. Redis gets a second for its first answer, even if wait is shorter. The
// wait does not bound the section that follows.
func (s *PermitSemaphore) TryAcquire(ctx context.Context, wait time.Duration) (context.Context, *Permit, error) {
	return s.TryAcquireN(ctx, 1, wait)
}

// TryAcquireN is TryAcquire for n permits, see [PermitSemaphore.AcquireN].
func (s *PermitSemaphore) TryAcquireN(ctx context.Context, n int, wait time.Duration) (context.Context, *Permit, error) {
	s.check(ctx)
	return s.acquire(tenure.CallerNow(ctx).UpTo(wait, time.Second).Persistent(s.semaphore.Persists), n)
}

func (s *PermitSemaphore) acquire(who tenure.Caller, n int) (context.Context, *Permit, error) {
	none := &Permit{of: s}
	if err := s.fits(int64(n), 1, mostPermits); err != nil {
		return who.Ctx, none, err
	}
	trace := s.client.trace.follow(&who, s.semaphore.Name, s.semaphore.Kind.Name)
	who.Trace = trace.tracer()
	h, err := throughOutages(who, s.semaphore.Lock, func(who tenure.Caller) (*counter.PermitHold, error) { return s.semaphore.Acquire(who, n) })
	if err != nil {
		trace.ended(who.Ctx, err, nil, nil)
		return who.Ctx, none, err
	}
	trace.ended(h, nil, func() { h.Released = trace.released }, h.GiveBack)
	return h, &Permit{s, h}, nil
}

// Do runs fn while it has a permit, as [Mutex.Do] does. fn gets the Permit for its id and its slot.
func (s *PermitSemaphore) Do(ctx context.Context, fn func(ctx context.Context, p *Permit) error) error {
	return withPermit(ctx, s.Acquire, fn)
}

// TryDo is Do with TryAcquire in place of Acquire: if no permit is free within wait, fn does not run, and the error satisfies
// [ErrNotAcquired] and [ErrNotRun].
func (s *PermitSemaphore) TryDo(ctx context.Context, wait time.Duration, fn func(ctx context.Context, p *Permit) error) error {
	return withPermit(ctx, func(ctx context.Context) (context.Context, *Permit, error) { return s.TryAcquire(ctx, wait) }, fn)
}

func withPermit(ctx context.Context, acquire func(context.Context) (context.Context, *Permit, error), fn func(context.Context, *Permit) error) error {
	if fn == nil {
		panic("rlock: Do of a nil function")
	}
	var permit *Permit
	return inside(ctx, func(ctx context.Context) (context.Context, UnlockFunc, error) {
		section, p, err := acquire(ctx)
		permit = p
		return section, p.Release, err
	}, func(ctx context.Context) error { return fn(ctx, permit) })
}

// Locker returns a Locker whose Lock takes n permits and whose unlock gives them back, for [DoValue] and for code that takes any Locker.
// Under the ctx of its own section it takes n more: permits are not re-entered. [All] and [Quorum] refuse it.
func (s *PermitSemaphore) Locker(n int) Locker {
	s.Name()
	return &permitLocker{s, n}
}

// permitLocker makes a Locker of n permits that expire.
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

// Release gives back the permit with that id, whichever process holds it. It is meant for operators, and for code that was handed an id;
// the holder itself calls [Permit.Release]. A holder in this Client loses the permit at once. A holder in another Client learns of the
// loss with its next renewal, within a third of the watchdog time, or when a fixed lease ends. Until then one holder more than there are
// permits may be at work.
//
// The error satisfies errors.Is for [ErrNotHeld] if there is no such permit, or it had expired. Otherwise errors and times are those of
// [Semaphore.Release]. If the holder is in this Client, they are also those of [Permit.Release], and ctx may be that of its section.
// If the error satisfies [ErrPending], Release continues in the background.
func (s *PermitSemaphore) Release(ctx context.Context, id string) error {
	s.check(ctx)
	permit, err := s.id(id)
	if err != nil {
		return err
	}
	return s.semaphore.Release(ctx, permit)
}

// UpdateLease makes the permit with that id expire d from now, sooner or later than before, whichever process holds it. d is in whole
// milliseconds; with [NoExpiry] the permit never expires. If the holder is in this Client, its section ends d from now and is no longer
// renewed. The watchdog of a holder in another Client may extend the lease again. A holder elsewhere without renewals does not notice a
// shorter d until its fixed lease ends, as for [PermitSemaphore.Release].
//
// It asks Redis once, and returns when ctx is done, with ctx.Err(). Without an answer the error is [ErrUnreachable], with [ErrPending] if
// the lease may change all the same. The error satisfies errors.Is for [ErrNotHeld] if there is no such permit, or it has expired. If calls
// for one permit overlap, or one had no answer, a section in this Client ends with the shortest of their leases.
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

// LeaseTime returns the remaining lease of the permit with that id, in whole milliseconds, or [NoExpiry]. It asks Redis once, and returns
// when ctx is done, with ctx.Err(). Without an answer the error is [ErrUnreachable]; it is [ErrNotHeld] if there is no such permit, or it
// has expired.
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
		return id, s.semaphore.Fail(fmt.Errorf("%s is no id of a permit, which has 32 hex digits", tenure.Quote(text)))
	}
	return id, nil
}

// Delete deletes the semaphore with all its permits, and reports whether there was one. Sections with its permits lose them, and learn of that
// with their next renewal, within a third of the watchdog time, or when a fixed lease ends. Otherwise it is [Semaphore.Delete].
func (s *PermitSemaphore) Delete(ctx context.Context) (bool, error) {
	s.check(ctx)
	return s.semaphore.Delete(ctx)
}

// Available returns the number of free permits. It is below 0 if the number of permits was lowered below the number held. It asks Redis
// once, and returns when ctx is done, with ctx.Err(). Without an answer the error is [ErrUnreachable].
func (s *PermitSemaphore) Available(ctx context.Context) (int64, error) {
	s.check(ctx)
	free, _, err := s.semaphore.Look(ctx)
	return free, err
}

// Acquired returns the number of permits that are held. Errors and times are those of [PermitSemaphore.Available].
func (s *PermitSemaphore) Acquired(ctx context.Context) (int64, error) {
	s.check(ctx)
	_, held, err := s.semaphore.Look(ctx)
	return held, err
}

// Permits returns the number of all permits, free or held. Errors and times are those of [PermitSemaphore.Available].
func (s *PermitSemaphore) Permits(ctx context.Context) (int64, error) {
	s.check(ctx)
	free, held, err := s.semaphore.Look(ctx)
	return free + held, err
}

// Permit is one permit or several, as returned by an Acquire of a [PermitSemaphore]. It is safe for concurrent use.
type Permit struct {
	of   *PermitSemaphore
	hold *counter.PermitHold // nil: its Acquire failed
}

// ID returns the id of the permit, the first if there are several. It has 32 hex digits, as in Redisson; the first 16 are those of
// [Client.ID]. It is "" if the Acquire failed.
func (p *Permit) ID() string {
	if p.hold == nil {
		return ""
	}
	return p.hold.IDs()[0]
}

// IDs returns the ids of all permits.
func (p *Permit) IDs() []string {
	if p.hold == nil {
		return nil
	}
	return p.hold.IDs()
}

// Slot returns the slot of the permit, the first if there are several: a number from 0 on, below the number of permits, that no other live
// permit of this library has. Another permit may get the slot once this one is released or lost. If the number of permits is lowered, held
// permits keep their slots. It is -1 if the Acquire failed.
func (p *Permit) Slot() int {
	if p.hold == nil {
		return -1
	}
	return p.hold.Slots()[0]
}

// Slots returns the slots of all permits, in the order of IDs.
func (p *Permit) Slots() []int {
	if p.hold == nil {
		return nil
	}
	return p.hold.Slots()
}

// Release ends the section and gives its permits back. It is an [UnlockFunc], with the same errors and times. It waits for Redis for up to
// [Options].UnlockTimeout, and then continues in the background. It works after [Client.Close]. The error satisfies errors.Is for
//
//   - [ErrNotHeld], if it was called before, if the Acquire failed, or if a permit was lost (then for [ErrLost] as well),
//   - [ErrPending], if Redis did not answer (then for [ErrUnreachable] as well) or refused.
func (p *Permit) Release() error {
	if p.hold == nil {
		return p.of.semaphore.Fail(ErrNotHeld, errAcquireFailed)
	}
	return p.hold.Release()
}

// errAcquireFailed is the reason in the ErrNotHeld of a failed Acquire's Permit.
var errAcquireFailed = errors.New("its Acquire failed")
