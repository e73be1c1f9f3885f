package faults

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

// churn makes clients take turns on a lock while cmd hits the server at each interval. If fair is set, the next
// strike waits until a section has completed. Lost updates of a plain counter reveal broken exclusion. Errors of
// Lock and unlock go to fails, unless this process or Redis stood still long enough to end the hold.
func (b *netFixture) churn(t *testing.T, every time.Duration, fair bool, cmd []string, fails func(error) bool) {
	t.Helper()
	// Both run for 5 s, or longer on a busy machine, until there is enough of both.
	const enough, atLeast, atMost = 100, 5 * time.Second, time.Minute
	stop := make(chan struct{})
	struck := make(chan struct{})
	stood := watchStalls(t, b.server)
	var strikes, counter, sections, inside atomic.Int64
	var mu sync.Mutex
	var failed []error
	go func() {
		defer close(struck)
		for before := int64(-1); ; {
			select {
			case <-stop:
				return
			case <-time.After(every):
			}
			now := sections.Load()
			if fair && now == before {
				continue
			}
			before = now
			if do(t, b.direct, cmd...).Error() == nil { // may fail: the next kill can hit this connection
				strikes.Add(1)
			}
		}
	}()
	clients := []*rlock.Client{b.lock, newClient(t, b.server.Client(t), rlock.Options{})}
	began := time.Now()
	more := func() bool {
		lasts := time.Since(began)
		return lasts < atLeast || lasts < atMost && (sections.Load() <= enough || strikes.Load() <= enough/10)
	}
	var wg sync.WaitGroup
	for _, c := range clients {
		for range 5 {
			wg.Go(func() {
				for more() {
					err := c.Mutex(b.name).Do(context.Background(), func(ctx context.Context) error {
						assert.EqualValues(t, 1, inside.Add(1), "G1")
						read := counter.Load()
						sleep(time.Millisecond)
						counter.Store(read + 1)
						sections.Add(1)
						inside.Add(-1)
						return ctx.Err()
					})
					if err != nil {
						mu.Lock()
						failed = append(failed, err)
						mu.Unlock()
					}
				}
			})
		}
	}
	wg.Wait()
	close(stop)
	<-struck
	t.Logf("%d strikes, %d sections, %d failed, in %v", strikes.Load(), sections.Load(), len(failed), time.Since(began))
	stood.settle(t)
	for _, err := range failed {
		assert.True(t, stood.excuse(err) || fails(err), "%v", err)
	}
	require.Greater(t, strikes.Load(), int64(enough/10))
	require.Equal(t, sections.Load(), counter.Load(), "lost updates")
	require.Greater(t, sections.Load(), int64(enough), "it goes on")
	require.LessOrEqual(t, len(failed), int(sections.Load()/100), "bad luck is rare")
	b.becomesFree(t, netWakeUp)
	b.awaitSubscribers(t, 0)
}

// excuse reports whether a hold ended because nothing ran to renew it. A hold that began with a grant is trusted
// for at least a second, and its renewal is due by then.
func (w *stalls) excuse(err error) bool {
	const least = time.Second
	var loss *rlock.LostError
	if !errors.As(err, &loss) || loss.Reason != rlock.LostExpired {
		return false
	}
	ran, _ := w.clear(span{loss.Since.Add(-least), loss.Since})
	return ran < least/2
}

// Fault 3 (SCRIPT FLUSH in a loop), G1, G4, G6: no call fails and no hold is lost.
func TestRedisScriptsFlushedUnderLoad(t *testing.T) {
	t.Parallel()
	b := newNetFixture(t, rlock.Options{})
	b.churn(t, time.Millisecond, false, []string{"SCRIPT", "FLUSH"}, func(error) bool { return false })
}

// Fault 3 (CLIENT KILL in a loop), G1, G4, G5, G6: all connections are closed again and again. Calls are
// retried. After seconds of bad luck a call may fail, but not with a lost lock.
func TestRedisClientsKilledUnderLoad(t *testing.T) {
	t.Parallel()
	b := newNetFixture(t, rlock.Options{})
	b.churn(t, 250*time.Millisecond, true, []string{"CLIENT", "KILL", "SKIPME", "yes"}, func(err error) bool {
		return !errors.Is(err, rlock.ErrLost) && !errors.Is(err, rlock.ErrNotHeld)
	})
}
