package endedctx

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// These end with the ctx.

type keeper struct{ ctx, other context.Context }

func keptInAField(ctx context.Context, k *keeper, m *rlock.Mutex) (err error) {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	k.ctx = ctx
	if err := errors.Join(work(ctx), unlock()); err != nil {
		return err
	}
	return work(k.ctx) // want `^k\.ctx was cancelled by the unlock of the Lock in line \d+: pass a ctx from before that, and give the section a ctx of its own name$`
}

func derived(ctx context.Context, m *rlock.Mutex) error {
	held, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	short, cancel := context.WithTimeout(context.WithValue(held, keeper{}, 1), time.Minute)
	defer cancel()
	if err := errors.Join(work(short), unlock()); err != nil {
		return err
	}
	return m.Do(short, work) // want `^short was cancelled by the unlock of the Lock in line \d+: give this Do a ctx from before that`
}

// The order of deferred calls.

func countsDown(ctx context.Context, m *rlock.Mutex, latch *rlock.CountDownLatch) error {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer work(ctx)                  // want `^ctx is cancelled by then, since the unlock in line \d+ is deferred later, and so runs first: defer the unlock first$`
	defer func() { _ = work(ctx) }() // want `ctx is cancelled by then`
	defer func() { _ = unlock() }()
	return work(ctx)
}

// Goroutines as the last step.

func leftBehind(ctx context.Context, m *rlock.Mutex, ids []string) error {
	err := m.Do(ctx, func(ctx context.Context) error {
		go work(ctx) // want `^ctx is cancelled as soon as this goroutine has begun, since the section of this Do ends here: wait for the goroutine, or give it a ctx that may outlive the lock$`
		return nil
	})
	var group sync.WaitGroup
	err = errors.Join(err, m.Do(ctx, func(held context.Context) error {
		for range ids {
			group.Add(1)
			go func() {
				defer group.Done()
				_ = work(held) // want `held is cancelled as soon as`
			}()
		}
		return held.Err()
	}))
	group.Wait()
	return err
}

func leftBehindLock(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	go work(ctx) // want `ctx is cancelled as soon as this goroutine has begun, since the section of this Lock ends here`
	return unlock()
}

func leftBehindDeferred(ctx context.Context, m *rlock.Mutex) (err error) {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	go work(ctx) // want `ctx is cancelled as soon as`
	return nil
}

func awaitedTooLate(ctx context.Context, m *rlock.Mutex) (err error) {
	var group sync.WaitGroup
	defer group.Wait()
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	group.Add(1)
	go func() {
		defer group.Done()
		_ = work(ctx) // want `ctx is cancelled as soon as`
	}()
	return nil
}

// The slot of a semaphore is given back, and nothing awaited.
func leftBehindWithASlot(ctx context.Context, m *rlock.Mutex, slots chan struct{}) (err error) {
	err = m.Do(ctx, func(ctx context.Context) error {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		defer func() { <-slots }()
		go work(ctx) // want `ctx is cancelled as soon as`
		return nil
	})
	ctx, unlock, lockErr := m.Lock(ctx)
	if lockErr != nil {
		return errors.Join(err, lockErr)
	}
	defer unlock()
	slots <- struct{}{}
	defer func() { <-slots }()
	go func() {
		slots <- struct{}{}
		defer func() { <-slots }()
		_ = work(ctx) // want `ctx is cancelled as soon as`
	}()
	return err
}

// So is a token.
func leftBehindWithAToken(ctx context.Context, m *rlock.Mutex, tokens chan struct{}) error {
	return m.Do(ctx, func(ctx context.Context) error {
		<-tokens
		defer func() { tokens <- struct{}{} }()
		go func() {
			<-tokens
			defer func() { tokens <- struct{}{} }()
			_ = work(ctx) // want `ctx is cancelled as soon as`
		}()
		return nil
	})
}

func leftBehindWithAResult(ctx context.Context, m *rlock.Mutex, errs chan error) error {
	return m.Do(ctx, func(ctx context.Context) error {
		defer func() { errs <- nil }() // for others
		go work(ctx)                   // want `ctx is cancelled as soon as`
		return nil
	})
}

// Correct code, without findings.

type crew struct{ sync.WaitGroup }

func (c *crew) disband(leave func()) {
	leave()
	c.end()
}

func (c *crew) end() { c.Wait() }

func awaitedByAMethod(ctx context.Context, m *rlock.Mutex, c *crew) error {
	return m.Do(ctx, func(ctx context.Context) error {
		ctx, leave := context.WithCancel(ctx)
		defer c.disband(leave)
		c.Add(1)
		go func() {
			defer c.Done()
			_ = work(ctx)
		}()
		return nil
	})
}

func awaitedByALiteral(ctx context.Context, m *rlock.Mutex) (err error) {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	done := make(chan error)
	finish := func() { err = errors.Join(err, <-done, unlock()) }
	defer finish()
	go func() { done <- work(ctx) }()
	return nil
}

func awaitedByAPool(ctx context.Context, m *rlock.Mutex, pool interface{ StopAndWait() }) error {
	return m.Do(ctx, func(ctx context.Context) error {
		defer pool.StopAndWait()
		go work(ctx)
		return nil
	})
}

func awaitedByAllSlots(ctx context.Context, m *rlock.Mutex, ids []string) error {
	return m.Do(ctx, func(ctx context.Context) error {
		slots := make(chan struct{}, 4)
		defer func() {
			for range cap(slots) {
				slots <- struct{}{}
			}
		}()
		for range ids {
			slots <- struct{}{}
			go func() {
				defer func() { <-slots }()
				_ = work(ctx)
			}()
		}
		return nil
	})
}

func awaitedByAsking(ctx context.Context, m *rlock.Mutex, serve func(context.Context, <-chan bool)) error {
	return m.Do(ctx, func(ctx context.Context) error {
		quit := make(chan bool)
		defer func() { quit <- true }()
		go serve(ctx, quit)
		return nil
	})
}

func awaitedUnlessIdle(ctx context.Context, m *rlock.Mutex, idle bool) error {
	return m.Do(ctx, func(ctx context.Context) error {
		done := make(chan error, 1)
		defer func() { <-done }()
		if idle {
			done <- nil
			return nil
		}
		go func() { done <- work(ctx) }()
		return nil
	})
}

func awaitedOutOfSight(ctx context.Context, m *rlock.Mutex, serve func(context.Context, chan bool)) error {
	return m.Do(ctx, func(ctx context.Context) error {
		done := make(chan bool, 2)
		done <- true
		defer func() { <-done }()
		go serve(ctx, done)
		return nil
	})
}

func awaitedAtTheEnd(ctx context.Context, m *rlock.Mutex, ids []string) error {
	return m.Do(ctx, func(ctx context.Context) error {
		var group sync.WaitGroup
		defer group.Wait()
		for range ids {
			group.Add(1)
			go func() {
				defer group.Done()
				_ = work(ctx)
			}()
		}
		return nil
	})
}

func awaitedBeforeTheUnlock(ctx context.Context, m *rlock.Mutex) (err error) {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	done := make(chan error)
	defer func() { <-done }()
	go func() { done <- work(ctx) }()
	return nil
}

func awaitedWithTheUnlock(ctx context.Context, m *rlock.Mutex) (err error) {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	done := make(chan error)
	defer func() {
		for e := range done {
			err = errors.Join(err, e)
		}
		err = errors.Join(err, unlock())
	}()
	go func() {
		done <- work(ctx)
		close(done)
	}()
	return nil
}

func before(ctx context.Context, k *keeper, m *rlock.Mutex) error {
	short, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	detached := context.WithoutCancel(ctx)
	k.other = ctx
	if err := errors.Join(work(ctx), unlock()); err != nil {
		return err
	}
	k.other = short
	return errors.Join(work(short), work(detached), work(k.other))
}

func inOrder(ctx context.Context, m *rlock.Mutex) error {
	held, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer work(ctx)
	defer func() { _ = unlock() }()
	defer work(held)
	return work(held)
}

func awaited(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(ctx context.Context) error {
		done := make(chan error)
		go func() { done <- work(ctx) }()
		return <-done
	})
}

func beside(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(ctx context.Context) error {
		go work(ctx)
		return work(ctx)
	})
}

func outlives(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(ctx context.Context) error {
		go work(context.WithoutCancel(ctx))
		return nil
	})
}

func takesOver(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	go func() {
		defer func() { _ = unlock() }()
		_ = work(ctx)
	}()
	return nil
}
