package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

const (
	longWatchdog = 5 * time.Minute // no test waits for it, even on a busy machine
	atMost       = 2 * time.Minute // no test waits that long
	maxWait      = 100 * time.Millisecond

	defaultUnlockTimeout = 3 * time.Second // see rlock.Options
)

// attempt is the result of a Lock.
type attempt struct {
	ctx    context.Context
	unlock rlock.UnlockFunc
	err    error
}

// pending is a Lock in progress on a goroutine of its own, which ends with the Lock.
type pending struct {
	result chan attempt
	cancel context.CancelFunc
}

func lockAsync(t *testing.T, l interface {
	Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error)
}) pending {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	p := pending{make(chan attempt, 1), cancel}
	go func() {
		var a attempt
		a.ctx, a.unlock, a.err = l.Lock(ctx)
		p.result <- a
	}()
	return p
}

func (p pending) get(t *testing.T, within time.Duration) attempt {
	t.Helper()
	select {
	case a := <-p.result:
		return a
	case <-time.After(within):
		t.Fatalf("Lock did not return within %v", within)
		panic("unreachable")
	}
}

func (p pending) stillWaits(t *testing.T) {
	t.Helper()
	select {
	case a := <-p.result:
		t.Fatalf("Lock returned: %v", a.err)
	default:
	}
}

// lockFunc is a way to lock.
type lockFunc func(context.Context) (context.Context, rlock.UnlockFunc, error)

func (f lockFunc) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) { return f(ctx) }
