package tenure_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/internal/testing/enginetest"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	_ "github.com/go-rlock/rlock/rlocktest" // the virtual world's Redis
)

// A tenure that is missing in Redis when its time is over was lost because it expired, whoever notices first.
func TestGoneAfterItsEnd(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const lease = 2 * time.Second
		c := enginetest.Start(t, redistest.Dial(t, redistest.Shared(t)))
		var levels []*tenure.Level
		var all sync.WaitGroup
		for range 60 {
			name := redistest.Name(t)
			l, err := engine.Lock(c.NewLock(name, kinds.Mutex, name, tenure.Terms{Lease: lease}), tenure.CallerNow(context.Background()))
			require.NoError(t, err)
			levels = append(levels, l)
			over := time.Now().Add(lease)
			all.Go(func() {
				time.Sleep(time.Until(over))
				l.Hold.Tenure.Gone() // beside the renewer
			})
		}
		all.Wait()
		for _, l := range levels {
			require.Equal(t, "lost: lost: its lease of fixed length ended", l.Hold.LossSoFar().Error())
			require.ErrorIs(t, engine.Unlock(l), enginetest.ErrLost)
		}
	})
}
