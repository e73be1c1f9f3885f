package faults

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// overtaken lets a renewal wait for the release, and the answer to the release wait until the renewer has worked in the
// renewal's.
type overtaken struct {
	rueidis.Client
	renewing func()        // when the renewal wants to be sent: of both holds
	released chan struct{} // closed when Redis has run the release
	worked   chan struct{} // closed when the renewer has worked the answer in, which renews the hold beside
}

func (o *overtaken) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	words := cmd.Commands()
	about := func(name string) bool { return slices.Contains(words, name) }
	switch c, _ := parseHistScript(words); {
	case c.what == "renew" && about("overtaken") && about("beside"):
		o.renewing()
		<-o.released
	case c.what == "release" && about("overtaken"):
		result := o.Client.Do(ctx, cmd)
		if result.Error() == nil {
			close(o.released)
			select {
			case <-o.worked:
			case <-ctx.Done(): // the test fails, and says so
			}
		}
		return result
	}
	return o.Client.Do(ctx, cmd)
}

// Fault 7 and 1, G6, G7, G8: a renewal that reaches Redis after the release, and whose answer is there
// before the release's, finds the owner's hold gone. The unlock has released the lock all the same,
// and says so. Found with 50,000 holds that were unlocked while they were renewed.
func TestLoadUnlockIsOvertakenByARenewal(t *testing.T) {
	s := redistest.Start(t)
	renewing, worked := make(chan struct{}), make(chan struct{})
	o := &overtaken{
		Client: s.Client(t), renewing: sync.OnceFunc(func() { close(renewing) }), released: make(chan struct{}), worked: worked,
	}
	workedIn := sync.OnceFunc(func() { close(worked) })
	// The call timeout of a renewal, a sixth of this, bounds how slow the machine may be.
	client := newClient(t, o, rlock.Options{WatchdogTimeout: 6 * time.Second, Trace: &rlock.Trace{Renewed: func(rlock.RenewedInfo) {
		select {
		case <-o.released:
			workedIn()
		default: // an earlier one
		}
	}}})
	_, unlockBeside, err := client.Mutex("beside").Lock(context.Background())
	require.NoError(t, err)
	_, unlock, err := client.Mutex("overtaken").Lock(context.Background())
	require.NoError(t, err)
	<-renewing
	require.NoError(t, unlock())
	select {
	case <-worked:
	default:
		require.Fail(t, "the release was answered first")
	}
	require.False(t, exists(t, s.Client(t), "overtaken"))
	require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
	require.NoError(t, unlockBeside())
}
