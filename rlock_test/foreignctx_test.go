package rlock_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// foreignCtx is a ctx of a program's own type, whose methods wait while it is shut, as they do for a mutex that somebody else has.
type foreignCtx struct {
	context.Context

	mu   sync.Mutex    // guards gate
	gate chan struct{} // nil: it is not shut
}

func (f *foreignCtx) shut() (open func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gate := make(chan struct{})
	f.gate = gate
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.gate = nil
		close(gate)
	})
}

func (f *foreignCtx) wait() {
	f.mu.Lock()
	gate := f.gate
	f.mu.Unlock()
	if gate != nil {
		<-gate
	}
}

func (f *foreignCtx) Done() <-chan struct{} { f.wait(); return f.Context.Done() }
func (f *foreignCtx) Err() error            { f.wait(); return f.Context.Err() }
func (f *foreignCtx) Value(key any) any     { f.wait(); return f.Context.Value(key) }

// G2: a ctx whose methods block delays no loss, not even that of its own section, no renewal, no other Lock, and Close by a second.
func TestForeignCtxStopsNobody(t *testing.T) {
	redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
		bg, cancel := context.WithCancel(context.Background())
		defer cancel()
		f := &foreignCtx{Context: bg}
		semaphore := b.PermitSemaphore(b.name + ":permits")
		answer(semaphore.TrySetPermits(bg, 1)).ok(t)
		reads := b.RWMutex(b.name + ":rw").Read()
		gone := locked(t, under{f, b.Mutex(b.name)})
		reader, beside := locked(t, under{f, reads}), locked(t, under{bg, reads})
		fixed := locked(t, under{f, b.Mutex(b.name+":fixed", rlock.WithLease(shortWatchdog))})
		permit, p, err := semaphore.Acquire(f)
		require.NoError(t, err)
		stays := locked(t, under{bg, b.Mutex(b.name + ":stays")})
		derived, stop := context.WithTimeout(fixed.ctx, time.Hour)
		defer stop()

		open := f.shut()
		require.NoError(t, b.do(t, "DEL", b.name, b.name+":rw", b.name+":permits", "{"+b.name+":permits}:timeout").Error())
		next := locked(t, under{bg, b.Mutex(b.name + ":fixed")})
		require.ErrorIs(t, context.Cause(fixed.ctx), rlock.ErrLost, "not cancelled when the next one has the lock (G1)")
		require.Error(t, derived.Err())
		sleep(shortWatchdog)
		synctest.Wait()
		for name, ctx := range map[string]context.Context{
			"a mutex": gone.ctx, "a reader": reader.ctx, "a reader beside it": beside.ctx, "a permit": permit,
		} {
			require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost, name)
		}
		sleep(3 * shortWatchdog)
		for _, a := range []lockResult{stays, next} {
			require.NoError(t, a.ctx.Err())
			require.NoError(t, a.unlock())
		}

		began := time.Now()
		b.Close()
		require.Equal(t, time.Second, time.Since(began))
		open()
		for _, unlock := range []func() error{gone.unlock, reader.unlock, beside.unlock, fixed.unlock, p.Release} {
			require.ErrorIs(t, unlock(), rlock.ErrLost)
		}
	})
}

// G9: Close of a Client with a section under such a ctx takes a second more, or until its methods return.
func TestCloseWithAForeignCtx(t *testing.T) {
	for name, stuck := range map[string]time.Duration{"for a moment": time.Second / 2, "for longer": 5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
				b := newFixture(t)
				bg, cancel := context.WithCancel(context.Background())
				defer cancel()
				f := &foreignCtx{Context: bg}
				ctx, unlock := enter(t, f, b.Mutex(b.name))
				time.AfterFunc(stuck, f.shut())
				began := time.Now()
				b.Close()
				require.Equal(t, min(stuck, time.Second), time.Since(began))
				require.ErrorIs(t, context.Cause(ctx), rlock.ErrClosed)
				sleep(stuck)
				require.NoError(t, unlock())
			})
		})
	}
}

// A ctx that panics when its section is lost ends nothing but that call, and the Logger learns of it.
func TestForeignCtxThatPanics(t *testing.T) {
	var logs lockedBuffer
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog, Logger: slog.New(slog.NewTextHandler(&logs, nil))})
		bg, cancel := context.WithCancel(context.Background())
		defer cancel()
		f := &panicking{Context: bg}
		ctx, unlock := enter(t, f, b.Mutex(b.name))
		stays, unlockOther := enter(t, bg, b.Mutex(b.name+":stays"))
		f.now.Store(true)
		require.NoError(t, b.do(t, "DEL", b.name).Error())
		sleep(shortWatchdog)
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
		f.now.Store(false)
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		require.NoError(t, stays.Err())
		require.NoError(t, unlockOther())
		b.Close()
	})
	require.Contains(t, logs.String(), "out of order")
}

type panicking struct {
	context.Context

	now atomic.Bool
}

func (p *panicking) Value(key any) any {
	if p.now.Load() {
		panic("out of order")
	}
	return p.Context.Value(key)
}
