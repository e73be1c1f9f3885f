package tell

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/testing/bubble"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// Calls run in order. Calls beyond the limit are dropped, and the next call gets the number dropped.
func TestTellerDrops(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		tell := Teller{}
		var got []string
		call := func(what string, do func()) func(int) {
			return func(dropped int) {
				got = append(got, fmt.Sprint(what, dropped))
				do()
			}
		}
		nothing := func() {}
		goOn := make(chan struct{})
		tell.Tell(2, call("a", func() { <-goOn }))
		synctest.Wait()
		for _, what := range []string{"b", "c", "d", "e"} {
			tell.Tell(2, call(what, nothing))
		}
		tell.Tell(3, call("f", nothing))
		close(goOn)
		synctest.Wait()
		require.True(t, slices.Equal(got, []string{"a0", "b2", "c0", "f0"}), got)
		tell.Tell(2, call("g", nothing))
		synctest.Wait()
		require.Equal(t, "g0", got[4])
		require.True(t, tell.idle == nil, "no goroutine is left")
	})
}

// Flush waits for all calls, until its ctx ends, and counts the calls it drops. The goroutine ends when a hanging call returns.
func TestTellerFlush(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		tell := Teller{}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		tell.Flush(ctx)
		tell.Tell(9, func(int) { time.Sleep(300 * time.Millisecond) })
		tell.Tell(9, func(int) { time.Sleep(300 * time.Millisecond) })
		began := time.Now()
		tell.Flush(ctx)
		require.Equal(t, 600*time.Millisecond, time.Since(began))

		goOn, more := make(chan struct{}), 0
		tell.Tell(9, func(int) { <-goOn })
		tell.Tell(9, func(int) { more++ })
		tell.Flush(ctx)
		require.Equal(t, time.Second, time.Since(began))
		close(goOn)
		synctest.Wait()
		require.Equal(t, 0, more)
		tell.Tell(9, func(dropped int) { more = dropped })
		synctest.Wait()
		require.Equal(t, 1, more)
	})
}

// A call that panics or ends its goroutine does not stop the next ones.
func TestTellerOfCallsThatFail(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var panics []any
		tell := Teller{Panicked: func(v any, _ []byte) { panics = append(panics, v) }}
		calls := 0
		tell.Tell(9, func(int) { panic("a") })
		tell.Tell(9, func(int) { runtime.Goexit() })
		tell.Tell(9, func(int) { calls++ })
		synctest.Wait()
		require.Equal(t, []any{"a"}, panics)
		require.Equal(t, 1, calls)
		require.True(t, tell.idle == nil, "no goroutine is left")
	})
}

// A call that blocks, panics or ends its goroutine delays no other; Flush waits for all, or for its ctx.
func TestEach(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		panics := make(chan any, 1)
		e := Each{Panicked: func(v any, _ []byte) { panics <- v }}
		e.Flush(t.Context()) // of none
		open, ended := make(chan struct{}), make(chan struct{})
		e.Go(func() { <-open })
		e.Go(func() { panic("out of order") })
		e.Go(runtime.Goexit)
		e.Go(func() { close(ended) })
		<-ended
		require.Equal(t, any("out of order"), <-panics)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		e.Flush(ctx)
		require.Equal(t, time.Second, time.Since(began))
		time.AfterFunc(time.Minute, func() { close(open) })
		e.Flush(t.Context())
		require.Equal(t, time.Second+time.Minute, time.Since(began))
	})
}
