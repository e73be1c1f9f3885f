package tell

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/require"
)

// A call that blocks, panics or ends its goroutine delays no other; Flush waits for all, or for its ctx.
func TestEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
