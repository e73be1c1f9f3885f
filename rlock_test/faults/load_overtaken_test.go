package faults

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// overtaken lets a renewal wait for the release, and the answer to the release wait for the
// renewal's.
type overtaken struct {
	rueidis.Client
	renewing chan struct{} // closed when the renewal wants to be sent
	released chan struct{} // closed when Redis has run the release
}

func (o *overtaken) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	words := cmd.Commands()
	c, _ := parseHistScript(words)
	switch c.what {
	case "renew":
		if words[0] == "EVALSHA" {
			close(o.renewing)
		}
		<-o.released
	case "release":
		result := o.Client.Do(ctx, cmd)
		if result.Error() == nil {
			close(o.released)
			for redistest.Goroutines("lease.(*Renewer).run") > 0 {
				<-time.After(time.Millisecond)
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
	o := &overtaken{Client: s.Client(t), renewing: make(chan struct{}), released: make(chan struct{})}
	// The call timeout of a renewal, a sixth of this, bounds how slow the machine may be.
	client := newClient(t, o, rlock.Options{WatchdogTimeout: 6 * time.Second})
	_, unlock, err := client.Mutex("overtaken").Lock(context.Background())
	require.NoError(t, err)
	<-o.renewing
	require.NoError(t, unlock())
	require.False(t, exists(t, s.Client(t), "overtaken"))
	require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
}
