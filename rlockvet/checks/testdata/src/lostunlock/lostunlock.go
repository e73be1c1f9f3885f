package lostunlock

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/go-rlock/rlock/rlock"
)

func work(ctx context.Context) error { return ctx.Err() }

func dropped(ctx context.Context, m *rlock.Mutex) error {
	ctx, _, err := m.Lock(ctx) // want `^the unlock of this Lock is dropped, so the lock stays held: assign it and defer it, or use Do$`
	if err != nil {
		return err
	}
	return work(ctx)
}

func statement(ctx context.Context, m *rlock.Mutex) {
	m.Lock(ctx)          // want `the unlock of this Lock is dropped`
	defer m.Lock(ctx)    // want `the unlock of this Lock is dropped`
	go m.TryLock(ctx, 0) // want `the unlock of this TryLock is dropped`
}

func unused(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.Lock(ctx) // want `^unlock is not called on every path, and the lock stays held after the return in line \d+: defer it when err is checked, or use Do$`
	if err != nil {
		return err
	}
	_ = unlock
	return work(ctx)
}

func earlyReturn(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.Lock(ctx) // want `unlock is not called on every path`
	if err != nil {
		return err
	}
	if err = work(ctx); err != nil {
		return fmt.Errorf("working: %w", err)
	}
	return unlock()
}

func earlyClosed(ctx context.Context, m *rlock.Mutex, closed bool) error {
	ctx, unlock, err := m.Lock(ctx) // want `unlock is not called on every path`
	if !(err == nil) {
		return err
	}
	if closed {
		return nil
	}
	defer unlock()
	return work(ctx)
}

func onlyIfOpen(ctx context.Context, m *rlock.Mutex, open bool) error {
	ctx, unlock, err := m.Lock(ctx) // want `unlock is not called on every path`
	if err == nil && open {
		return work(ctx)
	}
	defer unlock()
	return err
}

func errDropped(ctx context.Context, m *rlock.Mutex, closed bool) {
	_, unlock, _ := m.Lock(ctx) // want `unlock is not called on every path`
	if !closed {
		unlock()
	}
}

func overwritten(ctx context.Context, a, b *rlock.Mutex) error {
	_, unlock, err := a.Lock(ctx) // want `^unlock is overwritten in line \d+ before it is called, so the lock stays held: call it first$`
	if err != nil {
		return err
	}
	_, unlock, err = b.Lock(ctx)
	if err != nil {
		return err
	}
	return unlock()
}

func overwrittenInLoop(ctx context.Context, client *rlock.Client, names []string) (err error) {
	var unlock rlock.UnlockFunc
	for _, name := range names {
		ctx, unlock, err = client.Mutex(name).Lock(ctx) // want `unlock is (overwritten|not called)`
		if err != nil {
			return err
		}
	}
	return unlock()
}

func overwrittenBehindDefer(ctx context.Context, a, b *rlock.Mutex) (err error) {
	ctx, unlock, err := a.Lock(ctx) // want `^unlock is overwritten in line \d+, so the deferred function calls the later one, and this lock stays held: give each unlock a variable of its own$`
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	ctx, unlock, err = b.Lock(ctx)
	if err != nil {
		return err
	}
	return work(ctx)
}

func overwrittenInBranch(ctx context.Context, a, b *rlock.Mutex, more bool) error {
	ctx, unlock, err := a.Lock(ctx) // want `unlock is overwritten in line \d+, so the deferred function`
	if err != nil {
		return err
	}
	defer func() { _ = unlock() }()
	if more {
		ctx, unlock, err = b.TryLock(ctx, 0)
		if err != nil {
			return err
		}
	}
	return work(ctx)
}

func nextRound(ctx context.Context, client *rlock.Client, names []string) {
	for _, name := range names {
		held, unlock, err := client.Mutex(name).TryLock(ctx, 0) // want `^unlock is not called on every path, and the lock stays held in the next round of the loop: use Do, or a function for each round that defers it$`
		if err != nil {
			continue
		}
		if work(held) != nil {
			continue
		}
		_ = unlock()
	}
}

func check(err error) {
	if err != nil {
		log.Print(err)
	}
}

func argument(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer check(unlock()) // want `^unlock is called at once, and only check is deferred, so the section runs without the lock: defer a function literal that calls both$`
	return work(ctx)
}

func nestedArgument(ctx context.Context, m *rlock.Mutex, h *holder) error {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	h.unlock = unlock
	defer log.Println("unlocked", errors.Join(h.unlock(), nil)) // want `^h\.unlock is called at once, and only Println is deferred`
	return work(ctx)
}

func deferredInLoop(ctx context.Context, client *rlock.Client, names []string) error {
	for _, name := range names {
		held, unlock, err := client.Mutex(name).Lock(ctx) // want `^unlock is deferred in a loop, so the lock stays held in all later rounds: use Do, or a function for each round that defers it$`
		if err != nil {
			return err
		}
		defer unlock()
		if err := work(held); err != nil {
			return err
		}
	}
	return nil
}

func deferredInLoopClosure(ctx context.Context, client *rlock.Client, next func() (string, bool)) {
	for {
		name, ok := next()
		if !ok {
			return
		}
		held, unlock, err := client.Mutex(name).TryLock(ctx, 0) // want `unlock is deferred in a loop`
		if err == nil {
			defer func() { check(unlock()) }()
			check(work(held))
		}
	}
}

func notDeferredInLoop(ctx context.Context, m *rlock.Mutex) {
	for range 3 {
		held, unlock, err := m.Lock(ctx) // want `^unlock is not deferred, so a panic in line \d+ leaves the lock held: use Do, or a function for each round that defers it$`
		if err == nil {
			check(work(held))
			check(unlock())
		}
	}
}

func notDeferred(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.Lock(ctx) // want `^unlock is not deferred, so a panic in line 209 leaves the lock held: use Do, or defer it as well \(a second call changes nothing\)$`
	if err != nil {
		return err
	}

	err = work(ctx)
	return errors.Join(err, unlock())
}

func panics(ctx context.Context, m *rlock.Mutex, n int) error {
	_, unlock, err := m.Lock(ctx) // want `unlock is not deferred, so a panic in line \d+`
	if err != nil {
		return err
	}
	if n >= 0 {
		return unlock()
	}
	panic("n is negative")
}
