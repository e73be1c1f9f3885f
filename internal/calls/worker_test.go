package calls

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/testing/bubble"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// idle counts the workers without a call.
func idle(c *Calls) int {
	c.workers.mu.Lock()
	defer c.workers.mu.Unlock()
	return len(c.workers.idle)
}

// A call in turn uses the worker of the one before. A crowd has a worker each, of which maxIdle stay for a while, and those that are needed until
// Close.
func TestWorkersAreReused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := New(nil, errors.New("closed"))
		require.True(t, c.Start())
		call := func(takes time.Duration) {
			_, left, err := Leavable(t.Context(), c, 0, time.Time{}, func(<-chan struct{}) (int, error) {
				time.Sleep(takes)
				return 1, nil
			}, nil)
			require.False(t, left)
			require.NoError(t, err)
		}
		for range 10 {
			call(time.Second)
			require.Equal(t, 1, idle(c))
		}
		for range 2 * maxIdle {
			go call(time.Second)
		}
		time.Sleep(time.Second + time.Millisecond)
		require.Equal(t, maxIdle, idle(c))
		for range 10 { // one is still needed
			call(idleFor / 2)
		}
		require.Equal(t, 1, idle(c))
		time.Sleep(2*idleFor + 1)
		require.Zero(t, idle(c))
		call(0)
		require.Equal(t, 1, idle(c))
		c.Ended()
		c.Close()
		c.Wait()
		require.Zero(t, idle(c))
	}) // which waits for all goroutines
}

// A worker whose caller has left rolls back, and is used again: the next call is not taken for left. Its timer is that of the next caller.
func TestWorkerOfACallerThatLeft(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := New(nil, errors.New("closed"))
		require.True(t, c.Start())
		rolledBack := 0
		ask := func(takes, limit time.Duration) (left bool) {
			_, left, _ = Leavable(t.Context(), c, 0, time.Now().Add(limit), func(gone <-chan struct{}) (int, error) {
				time.Sleep(takes)
				require.Equal(t, takes > limit, IsClosed(gone))
				return 1, nil
			}, func(int, error) { rolledBack++ })
			return left
		}
		require.True(t, ask(3*time.Second, time.Second))
		require.True(t, c.AnyLeft())
		time.Sleep(3 * time.Second)
		require.False(t, c.AnyLeft())
		require.Equal(t, 1, rolledBack)
		require.Equal(t, 1, idle(c))
		require.False(t, ask(3*time.Second, 4*time.Second))
		require.True(t, ask(3*time.Second, 2*time.Second))
		synctest.Wait()
		c.Ended()
		c.Close()
		c.Wait() // for what goes on
		require.Equal(t, 2, rolledBack)
		require.Zero(t, idle(c))
	})
}

// A call made after Close, which an unlock may do, leaves no worker.
func TestWorkerAfterClose(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := New(nil, errors.New("closed"))
		c.Close()
		call := &leavable[int]{f: func(<-chan struct{}) (int, error) { return 7, nil }}
		w := c.Begin(0, call, false)
		<-w.Ended
		require.NoError(t, w.Result())
		require.Equal(t, 7, call.value)
		require.Zero(t, idle(c))
		c.Wait()
	})
}

// A ctx that panics leaves no worker behind that Close would wait for.
func TestCtxThatPanics(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := New(nil, errors.New("closed"))
		require.True(t, c.Start())
		func() {
			defer func() { require.Equal(t, any("out of order"), recover()) }()
			_, _, _ = Leavable(panicking{t.Context()}, c, 0, time.Time{}, func(<-chan struct{}) (int, error) { return 1, nil }, nil)
		}()
		c.Ended()
		c.Close()
		c.Wait()
	})
}

type panicking struct{ context.Context }

func (panicking) Done() <-chan struct{} { panic("out of order") }

// Whether the caller leaves or the call ends first, what came of it is for one of them.
func TestLeavingAndEndingAtOnce(t *testing.T) {
	c := New(nil, errors.New("closed"))
	require.True(t, c.Start())
	var rolledBack atomic.Int64
	got, left := int64(0), int64(0)
	const calls = 20_000
	for range calls {
		ctx, cancel := context.WithCancel(t.Context())
		value, gone, err := Leavable(ctx, c, 0, time.Time{}, func(<-chan struct{}) (int, error) {
			cancel()
			return 1, nil
		}, func(n int, _ error) { rolledBack.Add(int64(n)) })
		switch {
		case gone:
			left++
		default:
			require.NoError(t, err)
			got += int64(value)
		}
	}
	c.Ended()
	c.Close()
	c.Wait()
	require.Equal(t, int64(calls), got+left)
	require.Equal(t, left, rolledBack.Load())
	require.False(t, c.AnyLeft())
	require.Positive(t, got)
	t.Log(left, "have left")
}
