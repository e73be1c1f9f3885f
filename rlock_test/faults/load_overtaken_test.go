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

// overtaken delays a renewal until the release has run, and the release's reply until the renewer has processed the
// renewal's.
type overtaken struct {
	rueidis.Client
	renewing func()        // called before the renewal of both holds is sent
	released chan struct{} // closed when Redis has run the release
	worked   chan struct{} // closed when the renewer has processed the reply, which renews the hold beside
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
			case <-ctx.Done(): // then the test fails
			}
		}
		return result
	}
	return o.Client.Do(ctx, cmd)
}

// Fault 7 and 1, G6, G7, G8: a renewal reaches Redis after the release, but its reply arrives first: the hold is gone.
// The unlock, which released the lock, still returns nil. Found when 50,000 holds were unlocked during renewals.
func TestLoadUnlockIsOvertakenByARenewal(t *testing.T) {
	s := redistest.Start(t)
	renewing, worked := make(chan struct{}), make(chan struct{})
	o := &overtaken{
		Client: s.Client(t), renewing: sync.OnceFunc(func() { close(renewing) }), released: make(chan struct{}), worked: worked,
	}
	workedIn := sync.OnceFunc(func() { close(worked) })
	// A renewal's call timeout is a sixth of this: the machine may be that slow.
	client := newClient(t, o, rlock.Options{WatchdogTimeout: 6 * time.Second, Trace: &rlock.Trace{Renewed: func(rlock.RenewedInfo) {
		select {
		case <-o.released:
			workedIn()
		default: // an earlier renewal
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
		require.Fail(t, "the unlock returned before the renewal was processed")
	}
	require.False(t, exists(t, s.Client(t), "overtaken"))
	require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
	require.NoError(t, unlockBeside())
}
