package lockerr

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"

	"github.com/go-rlock/rlock/rlock"
)

func logErr(err error) {
	if err != nil {
		log.Print(err)
	}
}

func logBoth(what string, err error) {
	fmt.Println(what)
	logErr(err)
}

type worker struct{ log *slog.Logger }

func logged(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.Lock(ctx) // want `^err is only logged after this Lock, so the code goes on without the lock if it fails: return then, or use Do$`
	logErr(err)
	defer unlock()
	return work(ctx)
}

func loggedDeeper(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.Lock(ctx) // want `err is only logged`
	logBoth("lock", err)
	defer unlock()
	return work(ctx)
}

func loggedIf(ctx context.Context, m *rlock.Mutex) {
	ctx, unlock, err := m.Lock(ctx) // want `err is only logged`
	if err != nil {
		log.Println("lock:", err)
	}
	defer unlock()
	_ = work(ctx)
}

func loggedBusy(ctx context.Context, m *rlock.Mutex) {
	ctx, unlock, err := m.TryLock(ctx, 0)
	if errors.Is(err, rlock.ErrNotAcquired) { // want `^rlock.ErrNotAcquired is only logged here, so the code goes on without the lock of the TryLock in line 51: return, or use Do$`
		fmt.Println("busy")
	} else if err != nil {
		log.Fatalln(err)
	}
	defer unlock()
	_ = work(ctx)
}

func loggedOthers(ctx context.Context, m *rlock.Mutex) error {
	held, unlock, err := m.TryLock(ctx, 0)
	if err != nil && !rlock.IsBusy(err) {
		return err
	} else if rlock.IsBusy(err) { // want `^ErrNotAcquired \(by IsBusy\) is only logged here`
		log.Print("busy: ", err)
	}
	return errors.Join(work(held), unlock())
}

func loggedBusyFine(ctx context.Context, m *rlock.Mutex) error {
	held, unlock, err := m.TryLock(ctx, 0)
	if errors.Is(err, rlock.ErrNotAcquired) {
		log.Print("busy")
	} else if err != nil {
		return err
	} else {
		return errors.Join(work(held), unlock())
	}
	held, unlock, err = m.TryLock(ctx, 0)
	if errors.Is(err, rlock.ErrNotAcquired) {
		log.Print("busy")
	} else if err != nil {
		return err
	}
	if err != nil {
		return nil
	}
	return errors.Join(work(held), unlock())
}

func (w *worker) loggedInLoop(ctx context.Context, m *rlock.Mutex, jobs <-chan int) {
	for range jobs {
		held, unlock, err := m.TryLock(ctx, 0) // want `err is only logged`
		if err != nil {
			w.log.WarnContext(ctx, "lock", "err", err)
		}
		logErr(work(held))
		logErr(unlock())
	}
}

func busyOrLogged(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.TryLock(ctx, 0) // want `err may be another error when the section begins`
	if err != nil && errors.Is(err, rlock.ErrNotAcquired) {
		return nil
	}
	defer unlock()
	return work(ctx)
}

// Correct code, without findings.

func logAndExit(err error) {
	if err != nil {
		log.Print(err)
		os.Exit(1)
	}
}

func loggedAndEnded(ctx context.Context, m *rlock.Mutex, way int) error {
	ctx, unlock, err := m.Lock(ctx)
	switch way {
	case 0:
		logAndExit(err)
	case 1:
		if err != nil {
			log.Fatal(err)
		}
	case 2:
		if err != nil {
			log.Panicln(err)
		}
	case 3:
		log.Print(err)
		if err != nil {
			return err
		}
	}
	defer unlock()
	return work(ctx)
}

func loggedElse(ctx context.Context, m *rlock.Mutex) {
	if ctx, unlock, err := m.Lock(ctx); err != nil {
		log.Print(err)
	} else {
		defer unlock()
		_ = work(ctx)
	}
}

func loggedAndNoted(ctx context.Context, m *rlock.Mutex) error {
	held := true
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		log.Print(err)
		held = false
	}
	if !held {
		return nil
	}
	defer unlock()
	return work(ctx)
}

func loggedAndReturned(ctx context.Context, m *rlock.Mutex) error {
	_, unlock, err := m.Lock(ctx)
	if err != nil {
		log.Print(err)
	}
	_ = unlock()
	return err
}

// The error of an unlock.

func noResult(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }() // want `^nobody sees this error, since err is no result of the function: name the result err, without a := of that name in between$`
	return work(ctx)
}

func shadowed(ctx context.Context, m *rlock.Mutex) (err error) {
	if ctx, unlock, err := m.Lock(ctx); err == nil {
		defer func() { err = unlock() }() // want `nobody sees this error`
		return work(ctx)
	}
	return err
}

func twice(ctx context.Context, a, b *rlock.Mutex) error {
	ctx, unlockA, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlockA()) }() // want `nobody sees this error`
	ctx, unlockB, err := b.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlockB()) }() // want `nobody sees this error`
	return work(ctx)
}

func permitNoResult(ctx context.Context, s *rlock.PermitSemaphore) error {
	ctx, permit, err := s.Acquire(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, permit.Release()) }() // want `nobody sees this error`
	return work(ctx)
}

// Correct code, without findings.

func readLater(ctx context.Context, m *rlock.Mutex, ended func(error)) error {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { ended(err) }()
	defer func() { err = errors.Join(err, unlock()) }()
	return work(ctx)
}

func readAtOnce(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err = unlock(); err != nil {
			log.Print(err)
		}
	}()
	return work(ctx)
}

func ofTheCaller(ctx context.Context, m *rlock.Mutex, last *error) error {
	var problem error
	run := func() error {
		ctx, unlock, err := m.Lock(ctx)
		if err != nil {
			return err
		}
		defer func() { problem = unlock() }()
		defer func() { *last = unlock() }()
		return work(ctx)
	}
	return errors.Join(run(), problem)
}

// Latches.

func latch(ctx context.Context, client *rlock.Client) {
	l := client.CountDownLatch("ready")
	l.Await(ctx)                         // want `^the error of this Await is dropped, so the code does not wait for the latch if it fails: check it$`
	_ = l.TryAwait(ctx, 0)               // want `the error of this TryAwait is dropped`
	if err := l.Await(ctx); err != nil { // want `err is only logged after this Await, so the code does not wait for the latch if it fails: return then`
		log.Print(err)
	}
	_ = work(ctx)
}

func latchFine(ctx context.Context, l *rlock.CountDownLatch) error {
	if err := l.Await(ctx); err != nil {
		return err
	}
	err := l.TryAwait(ctx, 0)
	return errors.Join(err, work(ctx))
}
