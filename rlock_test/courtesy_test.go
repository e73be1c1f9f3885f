package rlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// G4: a Lock that comes right after an unlock which told Redisson does not wait for that with a ctx that ends soon.
func TestNoCourtesyOfAShortCtx(t *testing.T) {
	for side, channel := range map[string]string{"plain": "redisson_lock__channel", "write": "redisson_rwlock"} {
		redistest.RunVirtual(t, side, func(t *testing.T) {
			var waits atomic.Int32
			r := newProxied(t, rlock.Options{Trace: &rlock.Trace{Waiting: func(context.Context, rlock.WaitingInfo) { waits.Add(1) }}})
			m := r.handle()
			if side == "write" {
				m = r.Client.RWMutex(r.name).Write()
			}
			listensOutside(t, r.rdb, channel+":{"+r.name+"}", func() {})
			lockAndUnlock(t, m)
			ctx, cancel := context.WithTimeout(context.Background(), 500*time.Microsecond)
			defer cancel()
			if _, unlock, err := m.Lock(ctx); err == nil { // it may take longer
				require.NoError(t, unlock())
			}
			require.Zero(t, waits.Load(), "nobody has the lock")
		})
	}
}
