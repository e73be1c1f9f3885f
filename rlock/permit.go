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

// PermitSemaphore is a handle on a semaphore in Redis whose permits expire, Redisson's RPermitExpirableSemaphore. A live holder's are renewed,
// as locks are, but not Redisson's own; a dead holder's come back when their lease expires. One that was never set has none.
//
// An Acquire begins a section, as a Lock does. Its ctx is cancelled when the section is released, or with [ErrLost] when the permit is lost: the
// code should then stop, for another holder may have it. An Acquire under that ctx takes another permit.
//
// Waiters are served, and Releases synchronized, as those of a [Semaphore], but neither kind wakes the other's: use one kind for one name.
type PermitSemaphore struct {
	client    *Client
	semaphore counter.PermitSemaphore
}

// PermitSemaphore returns a handle on the semaphore called name. docs/locks.md has its options.
func (c *Client) PermitSemaphore(name string, options ...Option) *PermitSemaphore {
	c.check()
	m := c.counters.Get(c.prefix+name, kinds.PermitSemaphore, name, c.terms(kinds.PermitSemaphore, name, options))
	return &PermitSemaphore{c, counter.PermitSemaphore{Counter: m}}
}

// Name returns the name of the semaphore.
func (s *PermitSemaphore) Name() string {
	if s == nil || s.client == nil {
		panic("rlock: a PermitSemaphore that was not made by a Client")
	}
	return s.semaphore.Name
}

func (s *PermitSemaphore) check(ctx context.Context) {
	s.Name()
	needs(ctx)
}

// fits reports an error for a number of permits that is not from least to most.
func (s *PermitSemaphore) fits(n, least, most int64) error {
	if n < least || n > most {
		return s.semaphore.Fail(fmt.Errorf("%d permits, want %d to %d", n, least, most))
	}
	return nil
}

// change makes a change with a number of permits from least on.
func (s *PermitSemaphore) change(ctx context.Context, what lua.Change, n, least int64) (o counter.Outcome, err error) {
	s.check(ctx)
	if err := s.fits(n, least, MaxPermits); err != nil {
		return o, err
	}
	return s.semaphore.Change(ctx, what, n)
}

// TrySetPermits is [Semaphore.TrySetPermits], of the number of all permits.
func (s *PermitSemaphore) TrySetPermits(ctx context.Context, n int64) (bool, error) {
	o, err := s.change(ctx, lua.TrySet, n, 0)
	return o.Done == 1, err
}

// SetPermits sets the number of all permits, free and held, to n, which is 0 or more. If more than n are held, nobody loses one, and nobody gets
// one until enough were given back. Errors and times are those of [Semaphore.TrySetPermits].
func (s *PermitSemaphore) SetPermits(ctx context.Context, n int64) error {
	_, err := s.change(ctx, lua.SetTotal, n, 0)
	return err
}

// AddPermits is [Semaphore.AddPermits], of the number of all permits.
func (s *PermitSemaphore) AddPermits(ctx context.Context, n int64) error {
	_, err := s.change(ctx, lua.Add, n, -MaxPermits)
	return err
}

// Acquire takes a permit, and waits for it until ctx is done. It returns the section's ctx, a child of ctx. On error it returns the given ctx,
// and a Permit whose Release returns [ErrNotHeld]. Errors and times are those of [Semaphore.Acquire], or [ErrLost] if Redis took longer than the
// lease to answer.
func (s *PermitSemaphore) Acquire(ctx context.Context) (context.Context, *Permit, error) {
	return s.AcquireN(ctx, 1)
}

// AcquireN is Acquire for a section that needs n permits, from 1 to 100: all or none, as one Permit. If one is lost, its ctx is cancelled.
func (s *PermitSemaphore) AcquireN(ctx context.Context, n int) (context.Context, *Permit, error) {
	s.check(ctx)
	return s.acquire(tenure.CallerNow(ctx).Patient(s.semaphore.MaxWait, s.client.engine.Attempt).Persistent(s.semaphore.Persists), n)
}

// TryAcquire is Acquire with the bound of [Mutex.TryLock].
func (s *PermitSemaphore) TryAcquire(ctx context.Context, wait time.Duration) (context.Context, *Permit, error) {
	return s.TryAcquireN(ctx, 1, wait)
}

// TryAcquireN is TryAcquire for n permits, see [PermitSemaphore.AcquireN].
func (s *PermitSemaphore) TryAcquireN(ctx context.Context, n int, wait time.Duration) (context.Context, *Permit, error) {
	s.check(ctx)
	return s.acquire(tenure.CallerNow(ctx).UpTo(wait, s.client.engine.Attempt).Persistent(s.semaphore.Persists), n)
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
	trace.ended(h, nil, func() { h.Released = trace.released }, func() { _ = h.Release() })
	return h, &Permit{s, h}, nil
}

// Do is [Mutex.Do], with a permit. fn gets it for its id and its slot.
func (s *PermitSemaphore) Do(ctx context.Context, fn func(ctx context.Context, p *Permit) error) error {
	return withPermit(ctx, s.Acquire, fn)
}

// TryDo is Do with TryAcquire in place of Acquire, as [Mutex.TryDo].
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

// Locker is [Semaphore.Locker], but a loss cancels the section's ctx.
func (s *PermitSemaphore) Locker(n int) Locker {
	s.Name()
	return &permitLocker{s, n}
}

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

// Release gives back the permit with that id, whichever process holds it; the holder itself calls [Permit.Release]. A holder in this Client
// loses the permit at once, one in another Client with its next renewal, within a third of the watchdog time, or when a fixed lease ends. Until
// then one holder too many may be at work.
//
// Errors and times are those of [Semaphore.Release] and [Permit.Release]. ctx may be that of the holder's section.
func (s *PermitSemaphore) Release(ctx context.Context, id string) error {
	s.check(ctx)
	permit, err := s.id(id)
	if err != nil {
		return err
	}
	return s.semaphore.Release(ctx, permit)
}

// UpdateLease makes the permit with that id expire d from now, whichever process holds it. d is in whole milliseconds; with [NoExpiry] the
// permit never expires. A section in this Client ends then, and is no longer renewed; of overlapping calls the shortest lease counts. In another
// Client the watchdog may extend the lease again. Errors and times are those of [Mutex.ForceUnlock], or [ErrNotHeld] if there is no such permit.
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

// LeaseTime returns the remaining lease of the permit with that id, in whole milliseconds, or [NoExpiry]. Errors and times are those of
// [Mutex.IsLocked], or [ErrNotHeld] if there is no such permit.
func (s *PermitSemaphore) LeaseTime(ctx context.Context, id string) (time.Duration, error) {
	s.check(ctx)
	permit, err := s.id(id)
	if err != nil {
		return 0, err
	}
	return s.semaphore.LeaseTime(ctx, permit)
}

func (s *PermitSemaphore) id(text string) (id lua.PermitID, err error) {
	if n, err := hex.Decode(id[:], []byte(text[:min(len(text), 2*len(id))])); err != nil || n != len(id) || len(text) != 2*len(id) {
		return id, s.semaphore.Fail(fmt.Errorf("%s is no id of a permit, which has 32 hex digits", tenure.Quote(text)))
	}
	return id, nil
}

// Delete deletes the semaphore with all its permits, and reports whether there was one. Their sections lose them, as
// by [PermitSemaphore.Release]. Otherwise it is [Semaphore.Delete].
func (s *PermitSemaphore) Delete(ctx context.Context) (bool, error) {
	s.check(ctx)
	return s.semaphore.Delete(ctx)
}

// Available returns the number of free permits: below 0 if the number of permits was lowered below the number held.
// Errors and times are those of [Mutex.IsLocked].
func (s *PermitSemaphore) Available(ctx context.Context) (int64, error) {
	s.check(ctx)
	info, err := s.semaphore.Look(ctx, nil)
	return info.Free, err
}

// Acquired returns the number of permits that are held, as Available.
func (s *PermitSemaphore) Acquired(ctx context.Context) (int64, error) {
	s.check(ctx)
	info, err := s.semaphore.Look(ctx, nil)
	return info.Held, err
}

// Permits returns the number of all permits, free or held, as Available.
func (s *PermitSemaphore) Permits(ctx context.Context) (int64, error) {
	s.check(ctx)
	info, err := s.semaphore.Look(ctx, nil)
	return info.Free + info.Held, err
}

// Permit is one permit or several, as returned by an Acquire of a [PermitSemaphore]. Its methods are safe for concurrent use.
type Permit struct {
	of   *PermitSemaphore
	hold *counter.PermitHold // nil: its Acquire failed
}

// ID returns the id of the permit, the first if there are several: 32 hex digits, of which the first 16 are those of [Client.ID]. It is "" if
// the Acquire failed.
func (p *Permit) ID() string {
	if p.hold == nil {
		return ""
	}
	return p.hold.IDs[0].String()
}

// IDs returns the ids of all permits.
func (p *Permit) IDs() []string {
	if p.hold == nil {
		return nil
	}
	ids := make([]string, len(p.hold.IDs))
	for i, id := range p.hold.IDs {
		ids[i] = id.String()
	}
	return ids
}

// Slot returns the slot of the permit, the first if there are several: a number from 0 on, below the number of permits at the Acquire, that no
// other live permit of this library has. It is -1 if the Acquire failed.
func (p *Permit) Slot() int {
	if p.hold == nil {
		return -1
	}
	return int(p.hold.Slots[0])
}

// Slots returns the slots of all permits, in the order of IDs.
func (p *Permit) Slots() []int {
	if p.hold == nil {
		return nil
	}
	slots := make([]int, len(p.hold.Slots))
	for i, slot := range p.hold.Slots {
		slots[i] = int(slot)
	}
	return slots
}

// Release ends the section and gives its permits back. It is an [UnlockFunc], with the same errors and times;
// [ErrNotHeld] also if the Acquire failed. It works after [Client.Close].
func (p *Permit) Release() error {
	if p.hold == nil {
		return p.of.semaphore.Fail(ErrNotHeld, errAcquireFailed)
	}
	return p.hold.Release()
}

// errAcquireFailed is the reason in the ErrNotHeld of a failed Acquire's Permit.
var errAcquireFailed = errors.New("its Acquire failed")
