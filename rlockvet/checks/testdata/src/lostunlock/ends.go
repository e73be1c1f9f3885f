package lostunlock

import (
	"context"
	"errors"
	"log"
	"os"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// The end of the process.

func fatalInDo(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(ctx context.Context) error {
		if err := work(ctx); err != nil {
			log.Fatal(err) // want `^log\.Fatal calls no deferred function, so the lock of this Do stays held until its lease is over: return an error, and end the process outside of the section$`
		}
		return nil
	})
}

func exit(ctx context.Context, m *rlock.Mutex) {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		os.Exit(1)
	}
	defer func() { _ = unlock() }()
	if work(ctx) != nil {
		os.Exit(2) // want `os\.Exit calls no deferred function, so the lock of this Lock stays held`
	}
}

func fatalAtEnd(ctx context.Context, m *rlock.Mutex) {
	_, unlock, err := m.Lock(ctx)
	if err != nil {
		return
	}
	if unlock() == nil {
		return
	}
	_, unlock, err = m.Lock(ctx)
	if err != nil {
		return
	}
	log.Fatal("still in") // want `log\.Fatal calls no deferred function`
}

func fatalWithAHold(ctx context.Context, m *rlock.Mutex) {
	hold, err := rlock.Acquire(ctx, m)
	if err != nil {
		return
	}
	defer hold.Unlock()
	select {
	case <-ctx.Done():
		log.Fatal(ctx.Err()) // want `log\.Fatal calls no deferred function, so the lock of this Acquire stays held`
	case <-hold.Done():
		log.Fatal(hold.Err())
	case <-hold.Context().Done():
		log.Fatal("lost")
	default:
	}
	held := hold.Context()
	if work(held) != nil {
		if hold.Err() != nil || held.Err() != nil || context.Cause(hold.Context()) != nil {
			os.Exit(1)
		}
		os.Exit(2) // want `os\.Exit calls no deferred function`
	}
	<-held.Done()
	os.Exit(3)
}

// A transaction.

type tx struct{}

func (*tx) Commit() error   { return nil }
func (*tx) Rollback() error { return nil }
func (*tx) Exec() error     { return nil }

func commits(ctx context.Context, m *rlock.Mutex, t *tx) (err error) {
	defer t.Commit() // want `^this runs after the unlock in line \d+, which is deferred later, so others get the lock before they see the changes: commit in the section$`
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	return errors.Join(work(ctx), t.Exec())
}

func commitsOnSuccess(ctx context.Context, m *rlock.Mutex, t *tx) (err error) {
	defer func() {
		if err == nil {
			err = t.Commit() // want `this runs after the unlock`
		}
	}()
	_, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return t.Exec()
}

// Helpers.

func enter(ctx context.Context, m *rlock.Mutex) (context.Context, func() error, error) {
	ctx, unlock, err := m.Lock(ctx)
	return ctx, unlock, err
}

func entersAndDrops(ctx context.Context, m *rlock.Mutex) error {
	ctx, _, err := enter(ctx, m) // want `^the unlock of this enter is dropped, so the lock stays held: assign it and defer it, or use Do$`
	if err != nil {
		return err
	}
	return work(ctx)
}

func entersAndForgets(ctx context.Context, m *rlock.Mutex) error {
	ctx, leave, err := enter(ctx, m) // want `leave is not called on every path`
	if err != nil {
		return err
	}
	if err := work(ctx); err != nil {
		return err
	}
	return leave()
}

// Correct code, without findings.

func exitsOutside(ctx context.Context, m *rlock.Mutex) {
	held, unlock, err := m.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(work(held), unlock()); err != nil {
		log.Fatal(err)
	}
	err = m.Do(ctx, func(ctx context.Context) error {
		if ctx.Err() != nil {
			os.Exit(3) // it has lost the lock
		}
		return nil
	})
	if err != nil {
		os.Exit(1)
	}
}

func exitsUnderALease(ctx context.Context, client *rlock.Client) {
	m := client.Mutex("a", rlock.WithLease(time.Second))
	_ = m.Do(ctx, func(context.Context) error {
		os.Exit(1)
		return nil
	})
}

type reader struct{}

func (*reader) Commit() error { return nil }
func (*reader) Next() error   { return nil }

func confirms(ctx context.Context, m *rlock.Mutex, messages *reader) error {
	defer messages.Commit()
	_, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return messages.Next()
}

func rollsBack(ctx context.Context, m *rlock.Mutex, t, other *tx) (err error) {
	defer t.Rollback()
	defer other.Commit()
	_, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return errors.Join(t.Exec(), t.Commit())
}

func entersAndLeaves(ctx context.Context, m *rlock.Mutex) (err error) {
	ctx, leave, err := enter(ctx, m)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leave()) }()
	return work(ctx)
}
