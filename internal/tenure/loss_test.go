package tenure_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/internal/testing/enginetest"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lease"
)

// A tenure that is missing in Redis when its time is over was lost because it expired, whoever notices first.
func TestGoneAfterItsEnd(t *testing.T) {
	t.Parallel()
	c, name := enginetest.Start(t, redistest.Dial(t, redistest.Shared(t))), redistest.Name(t)
	for range 50 {
		l, err := engine.Lock(c.NewLock(name, kinds.Mutex, name, tenure.Terms{NoReentry: true}), tenure.CallerNow(context.Background()))
		require.NoError(t, err)
		of := l.Hold.Tenure
		c.Leases.Stop(&of.Lease)
		of.Lease = lease.Lease{}
		c.Leases.Keep(&of.Lease, tenure.Keeper{Tenure: of}, time.Now(), 0)
		of.Gone() // beside the renewer
		loss := l.Hold.LossSoFar().Error()
		require.True(t, strings.HasSuffix(loss, "its lease of fixed length ended"), loss)
		require.ErrorIs(t, engine.Unlock(l), enginetest.ErrLost)
	}
}
