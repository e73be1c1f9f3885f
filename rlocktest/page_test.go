package rlocktest_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

// The code of README.md, which shows some of it in this form.

type Shop struct {
	locks *rlock.Client
	store Store
}

func (s *Shop) Ship(ctx context.Context, order string) error {
	return s.locks.Mutex("order:"+order).Do(ctx, func(ctx context.Context) error {
		return s.store.MarkShipped(ctx, order)
	})
}

// Store keeps the shop's orders.
type Store interface {
	MarkShipped(ctx context.Context, order string) error
}

// store does what a test wants.
type store func(ctx context.Context, order string) error

func (s store) MarkShipped(ctx context.Context, order string) error { return s(ctx, order) }

func TestShip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := rlocktest.New(t)
		shop := &Shop{locks.Client, store(func(ctx context.Context, order string) error {
			locks.AssertHeld(ctx, "order:"+order)
			return nil
		})}
		if err := shop.Ship(t.Context(), "42"); err != nil {
			t.Error(err)
		}
	})
}

func TestShipTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := rlocktest.New(t)
		shop := &Shop{locks.Client, store(func(ctx context.Context, order string) error {
			time.Sleep(10 * time.Minute) // no time outside of the bubble
			return ctx.Err()             // the lease is 30 seconds, and was renewed
		})}
		if err := shop.Ship(t.Context(), "42"); err != nil {
			t.Error(err)
		}
	})
}

func TestShipWaitsForAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := rlocktest.New(t)
		shipped := false
		shop := &Shop{locks.Client, store(func(context.Context, string) error {
			shipped = true
			return nil
		})}
		release := locks.HoldElsewhere("order:42")
		result := make(chan error)
		go func() { result <- shop.Ship(t.Context(), "42") }()
		synctest.Wait() // until it waits for the lock
		if shipped {
			t.Error("shipped while another process has the order")
		}
		release()
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
}

func TestShipAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := rlocktest.New(t)
		shop := &Shop{locks.Client, store(func(context.Context, string) error { return nil })}
		other := locks.Elsewhere()
		if _, _, err := other.Mutex("order:42").Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		locks.Crash(other) // dies with the lock
		began := time.Now()
		if err := shop.Ship(t.Context(), "42"); err != nil {
			t.Error(err)
		}
		if waited := time.Since(began); waited > rlock.DefaultWatchdogTimeout+time.Second {
			t.Errorf("shipped after %v", waited)
		}
	})
}

func TestShipStopsWhenTheLockIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := rlocktest.New(t)
		shop := &Shop{locks.Client, store(func(ctx context.Context, order string) error {
			locks.Lose("order:" + order)
			<-ctx.Done() // a store that heeds its ctx
			return ctx.Err()
		})}
		if err := shop.Ship(t.Context(), "42"); !errors.Is(err, rlock.ErrLost) {
			t.Errorf("got %v, want a loss", err)
		}
	})
}

func TestShipWhileRedisFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := rlocktest.New(t)
		var restore func()
		shop := &Shop{locks.Client, store(func(ctx context.Context, order string) error {
			restore = locks.FailRedis()
			<-ctx.Done() // no renewal arrives, so the lease ends
			return ctx.Err()
		})}
		if err := shop.Ship(t.Context(), "42"); !errors.Is(err, rlock.ErrLost) {
			t.Errorf("got %v, want a loss", err)
		}
		if err := shop.Ship(t.Context(), "42"); !errors.Is(err, rlock.ErrUnreachable) {
			t.Errorf("got %v, want that Redis is not reached", err)
		}
		restore()
		if err := locks.Mutex("order:42").Do(t.Context(), func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
	})
}

func TestWorkerStopsWhenItsPermitIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := rlocktest.New(t)
		workers := locks.PermitSemaphore("workers")
		if err := workers.SetPermits(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		other := locks.HoldExpiringPermitsElsewhere("workers", 1) // has slot 0
		err := workers.Do(t.Context(), func(ctx context.Context, p *rlock.Permit) error {
			if p.Slot() != 1 {
				t.Errorf("got slot %d", p.Slot())
			}
			locks.LosePermit("workers")
			<-ctx.Done() // told by its next renewal
			return ctx.Err()
		})
		if !errors.Is(err, rlock.ErrLost) {
			t.Errorf("got %v, want a loss", err)
		}
		if err := other.Release(); err != nil {
			t.Error(err)
		}
	})
}

func TestImportWaitsForItsParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := rlocktest.New(t)
		parts := locks.CountDownLatch("parts")
		if _, err := parts.TrySetCount(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		result := make(chan error)
		go func() { result <- parts.Await(t.Context()) }()
		synctest.Wait() // until it waits
		locks.CountDownElsewhere("parts")
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
}

func TestNoOppositeOrders(t *testing.T) {
	locks := rlocktest.New(t)
	locks.LockOrder(rlocktest.ByPrefix) // "order:42" and "order:43" are of one group, "order"
	order, stock := locks.Mutex("order:42"), locks.Mutex("stock:7")
	err := order.Do(t.Context(), func(ctx context.Context) error {
		return stock.Do(ctx, func(context.Context) error { return nil })
	})
	if err != nil {
		t.Error(err)
	}
}

// The code in the package comment.
func TestChargeStopsWhenTheLockIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := rlocktest.New(t)
		err := locks.Mutex("order:42").Do(t.Context(), func(ctx context.Context) error {
			locks.FailRedis() // renewals no longer arrive
			<-ctx.Done()      // 30 seconds later
			return ctx.Err()
		})
		if !errors.Is(err, rlock.ErrLost) {
			t.Errorf("got %v, want a loss", err)
		}
	})
}

// freeLock is a lock that nobody else wants.
type freeLock struct{}

func (freeLock) Name() string { return "order:42" }

func (freeLock) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	ctx, cancel := context.WithCancel(ctx)
	return ctx, func() error { cancel(); return nil }, nil
}

func (l freeLock) TryLock(ctx context.Context, _ time.Duration) (context.Context, rlock.UnlockFunc, error) {
	return l.Lock(ctx)
}

// What the page and the package comment show is above.
func TestPage(t *testing.T) {
	require.NoError(t, shipUnder(t.Context(), freeLock{}))

	source, err := os.ReadFile("page_test.go")
	require.NoError(t, err)
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(blocks), 5)
	for _, block := range blocks {
		for part := range strings.SplitSeq(block[1], "\n\n") {
			require.Contains(t, string(source), strings.TrimSuffix(part, "\n")+"\n")
		}
	}
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	shown := strings.Join(regexp.MustCompile(`(?m)^//\t.*\n`).FindAllString(string(doc), -1), "")
	require.Contains(t, shown, "func Test")
	require.Contains(t, string(source), strings.ReplaceAll(shown, "//\t", ""))
}

func shipUnder(ctx context.Context, l rlock.Locker) error {
	_, err := rlock.DoValue(ctx, l, func(ctx context.Context) (int, error) { return 0, ctx.Err() })
	return err
}
