package rlock

import (
	"context"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/counter"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lua"
)

// MaxPermits is the highest number of permits that a call takes, gives back or sets, as in Redisson.
const MaxPermits = lua.MaxPermits

// Semaphore is a handle on a semaphore in Redis, Redisson's RSemaphore: a number of permits that goroutines of any process, Java's included,
// take and give back. One that was never set has none.
//
// Nobody owns a permit, and it has no lease. If a process dies, the permits it took are gone until somebody releases them in its place. A
// Release without an Acquire adds permits.
//
// First come, first served: an Acquire of few permits waits behind one that needs more than are free. Processes take turns. A Release is
// synchronized before the return of any Acquire that could not have succeeded without it, see [Mutex].
type Semaphore struct {
	client    *Client
	semaphore counter.Counter
}

// Semaphore returns a handle on the semaphore called name.
func (c *Client) Semaphore(name string) *Semaphore {
	c.check()
	return &Semaphore{c, c.counters.Get(c.prefix+name, kinds.Semaphore, name, c.terms(kinds.Semaphore, name, nil))}
}

// Name returns the name of the semaphore.
func (s *Semaphore) Name() string {
	if s == nil || s.client == nil {
		panic("rlock: a Semaphore that was not made by a Client")
	}
	return s.semaphore.Name
}

func (s *Semaphore) check(ctx context.Context) {
	if s.Name(); ctx == nil {
		panic("rlock: the ctx is nil")
	}
}

// fits reports an error for a number of permits that is not from least to MaxPermits.
func (s *Semaphore) fits(n, least int64) error {
	if n == 0 && s.semaphore.Invalid != nil {
		return s.semaphore.Invalid
	}
	if n < least || n > MaxPermits {
		return s.semaphore.Fail(fmt.Errorf("%d permits, want %d to %d", n, least, int64(MaxPermits)))
	}
	return nil
}

// TrySetPermits sets the number of permits, if the semaphore was not set, and reports whether it did. n is 0 or more.
// Errors and times are those of [CountDownLatch.TrySetCount].
func (s *Semaphore) TrySetPermits(ctx context.Context, n int64) (bool, error) {
	s.check(ctx)
	if err := s.fits(n, 0); err != nil {
		return false, err
	}
	o, err := s.semaphore.Change(ctx, lua.TrySet, n)
	return o.Done == 1, err
}

// Acquire takes n permits, all at once, and waits for them until ctx is done, without sending anything. One that wants more permits than there
// are waits, and all behind it, even of other processes: give it a ctx that ends. A failed Acquire takes nothing. Errors and times are those of
// [CountDownLatch.Await]; the [*NotAcquiredError] has the number of free permits.
func (s *Semaphore) Acquire(ctx context.Context, n int64) error {
	s.check(ctx)
	return s.acquire(tenure.CallerNow(ctx), n)
}

// TryAcquire is Acquire with the bound of [Mutex.TryLock].
func (s *Semaphore) TryAcquire(ctx context.Context, n int64, wait time.Duration) error {
	s.check(ctx)
	return s.acquire(tenure.CallerNow(ctx).UpTo(wait, s.client.engine.Attempt), n)
}

func (s *Semaphore) acquire(who tenure.Caller, n int64) error {
	if err := s.fits(n, 0); n == 0 || err != nil {
		return err
	}
	if s.client.trace == nil {
		return s.semaphore.Await(who, n)
	}
	trace := s.client.trace.follow(&who, s.semaphore.Name, s.semaphore.Kind.Name)
	who.Trace = trace
	err := s.semaphore.Await(who, n)
	has := err == nil
	defer func() {
		if has { // a function of the Trace has panicked, so the caller does not get them
			_ = s.release(who.Ctx, n)
		}
	}()
	trace.passed(err)
	has = false
	return err
}

// Release gives n permits back, exactly once, and creates the semaphore if it was never set. With [ErrPending] it continues in the background,
// for a minute or until the Client is closed: do not call it again. After any other error it gives nothing back, as if ctx is done before the
// call. It works during and after [Client.Close], and never fails with [ErrClosed]. Otherwise errors and times are those of
// [Semaphore.TrySetPermits].
func (s *Semaphore) Release(ctx context.Context, n int64) error {
	s.check(ctx)
	if err := s.fits(n, 0); n == 0 || err != nil {
		return err
	}
	_, err := s.semaphore.Release(ctx, lua.Add, n)
	return err
}

// release is Release for permits that go back even if ctx is done, within Options.UnlockTimeout.
func (s *Semaphore) release(ctx context.Context, n int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.semaphore.Client.Options.UnlockTimeout)
	defer cancel()
	_, err := s.semaphore.Release(ctx, lua.Add, n)
	return err
}

// ReleaseIfExists is Release if the semaphore was set, and reports whether it was. If it continues in the background,
// it gives nothing back unless the semaphore exists by then.
func (s *Semaphore) ReleaseIfExists(ctx context.Context, n int64) (bool, error) {
	s.check(ctx)
	if err := s.fits(n, 1); err != nil {
		return false, err
	}
	o, err := s.semaphore.Release(ctx, lua.AddIfExists, n)
	return o.Done == 1, err
}

// AddPermits changes the number of permits by n, which may be negative. Below 0 nobody gets a permit until enough were given back. Errors are
// those of Release, or [ErrClosed].
func (s *Semaphore) AddPermits(ctx context.Context, n int64) error {
	s.check(ctx)
	if err := s.fits(n, -MaxPermits); err != nil {
		return err
	}
	_, err := s.semaphore.Change(ctx, lua.Add, n)
	return err
}

// Delete deletes the semaphore, and reports whether it was set. Waiters go on waiting, until it is set again. Permits that are given back later
// create it. Errors and times are those of [Mutex.ForceUnlock].
func (s *Semaphore) Delete(ctx context.Context) (bool, error) {
	s.check(ctx)
	return s.semaphore.Delete(ctx)
}

// Drain takes all free permits, and returns their number. Errors and times are those of [Semaphore.TrySetPermits]; a Drain without an answer is
// undone.
func (s *Semaphore) Drain(ctx context.Context) (int64, error) {
	s.check(ctx)
	o, err := s.semaphore.Change(ctx, lua.Drain, 0)
	return o.Done, err
}

// Available returns the number of free permits, which may be below 0, see AddPermits. Errors and times are those of
// [Mutex.IsLocked].
func (s *Semaphore) Available(ctx context.Context) (int64, error) {
	s.check(ctx)
	return s.semaphore.Count(ctx)
}

// Locker returns a [Locker] whose Lock takes n permits and whose unlock gives them back. Under the ctx of its own section it takes n more. The
// unlock and [Client.Close] cancel that ctx, but no loss, because nobody owns permits in Redis. [Client.Shutdown] waits for the unlock. [All]
// and [Quorum] refuse it.
func (s *Semaphore) Locker(n int64) Locker {
	s.Name()
	return &permits{s, n}
}

// Do runs fn while it has n permits, in a section as that of [Semaphore.Locker], and releases them like an unlock; after an error they go back
// in the background, for a minute or until the Client is closed.
func (s *Semaphore) Do(ctx context.Context, n int64, fn func(ctx context.Context) error) error {
	s.check(ctx)
	return inside(ctx, s.Locker(n).Lock, fn)
}

// TryDo is Do with TryAcquire in place of Acquire, as [Mutex.TryDo].
func (s *Semaphore) TryDo(ctx context.Context, n int64, wait time.Duration, fn func(ctx context.Context) error) error {
	s.check(ctx)
	return inside(ctx, within(s.Locker(n), wait), fn)
}

// permits makes a Locker of a number of permits.
type permits struct {
	of *Semaphore
	n  int64
}

func (p *permits) Name() string { return p.of.Name() }

func (p *permits) Lock(ctx context.Context) (context.Context, UnlockFunc, error) {
	return p.section(ctx, p.of.Acquire(ctx, p.n))
}

func (p *permits) TryLock(ctx context.Context, wait time.Duration) (context.Context, UnlockFunc, error) {
	return p.section(ctx, p.of.TryAcquire(ctx, p.n, wait))
}

// section begins with the permits, if there is no error.
func (p *permits) section(outer context.Context, err error) (context.Context, UnlockFunc, error) {
	m := p.of.semaphore
	if err != nil {
		return outer, func() error { return m.Fail(ErrNotHeld, errLockFailed) }, err
	}
	h, err := m.Section(outer, p.n)
	if err != nil {
		if p.n > 0 {
			_ = p.of.release(outer, p.n)
		}
		return outer, func() error { return m.Fail(ErrNotHeld, errLockFailed) }, err
	}
	return h, h.Release, nil
}
