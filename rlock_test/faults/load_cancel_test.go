package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

const (
	cancelWatchdog = 1500 * time.Millisecond
	cancelRate     = 1000 // calls a second
	cancelNames    = 400  // a quarter of them held by others
	cancelGrowth   = 1 << 20
)

// Fault 7 with 1 and 2, G3, G5, G7: for 30 s or FAULTS_DURATION there are 1,000 Lock calls a second, while connections are
// cut now and then. Each is cancelled after a random time, up to 3 round trips on free names and longer on held ones. No
// key, channel or goroutine is left, no key without a holder is renewed, and memory does not grow.
func TestLoadCancelledLocks(t *testing.T) {
	s := redistest.Start(t)
	proxy := redistest.StartProxy(t, s.Addr())
	watch := s.Client(t)
	m := &meter{Client: redistest.Dial(t, proxy.Addr())}
	options := rlock.Options{WatchdogTimeout: cancelWatchdog}
	r := &recklessness{
		random: rand.New(rand.NewPCG(faultsSeed(t), 7)), proxy: proxy, client: newClient(t, m, options),
	}
	proxy.Delay(time.Millisecond)
	r.rtt = roundTrip(t, m)
	others := newClient(t, s.Client(t), options)

	d := faultsDuration(t, 30*time.Second)
	r.storm(t, others, min(d/4, 5*time.Second)) // fills pools and maps
	requireEmpty(t, watch, drainPatience)
	before := measure()
	r.calls.Store(0)
	r.held.Store(0)
	used := cpu(t)
	r.storm(t, others, d)
	used = cpu(t) - used
	requireEmpty(t, watch, drainPatience)
	heap, _ := measure().per(before, 1)
	t.Logf("%d Lock calls in %v with a round trip of %v, %d successful; "+
		"CPU time per call: %v; heap growth: %d bytes", r.calls.Load(), d, r.rtt, r.held.Load(), used/time.Duration(r.calls.Load()), heap)
	require.Less(t, heap, int64(cancelGrowth))
	require.Positive(t, r.held.Load(), "some calls must get the lock")
	require.Less(t, r.held.Load(), r.calls.Load()*9/10, "many calls must be cancelled")

	r.orphans(t, watch, m)
	silent := m.renewals.Load()
	sleep(cancelWatchdog)
	require.Equal(t, silent, m.renewals.Load(), "no key may be renewed")
	requireEmpty(t, watch, drainPatience)
	r.client.Close()
	others.Close()
}

// roundTrip returns the median of some round trips.
func roundTrip(t *testing.T, rdb rueidis.Client) time.Duration {
	t.Helper()
	var all []time.Duration
	for range 51 {
		began := time.Now()
		require.NoError(t, do(t, rdb, "PING").Error())
		all = append(all, time.Since(began))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// recklessness is a client whose callers cancel their Locks.
type recklessness struct {
	random *rand.Rand
	proxy  *redistest.Proxy
	client *rlock.Client
	rtt    time.Duration

	calls, held atomic.Int64
}

func cancelName(i int) string { return "reckless:" + strconv.Itoa(i) }

// storm calls Lock at cancelRate for the time d, and returns when all calls have ended. Others hold the first quarter of
// the names, with short gaps.
func (r *recklessness) storm(t *testing.T, others *rlock.Client, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var wg sync.WaitGroup
	for i := range cancelNames / 4 {
		seed := r.random.Uint64()
		wg.Go(func() { keepBusy(ctx, t, others.Mutex(cancelName(i)), rand.New(rand.NewPCG(seed, 1))) })
	}
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	cut := time.NewTicker(3 * time.Second)
	defer cut.Stop()
	began, called := time.Now(), 0
	for ctx.Err() == nil {
		select {
		case <-ticker.C:
		case <-cut.C:
			r.proxy.CutAll()
		}
		for ; called < int(time.Since(began).Seconds()*cancelRate); called++ { // catches up after a late tick
			i, after := r.random.IntN(cancelNames), time.Duration(r.random.Int64N(int64(3*r.rtt)))
			if i < cancelNames/4 {
				after = time.Duration(r.random.Int64N(int64(100 * time.Millisecond)))
			}
			wg.Go(func() { r.lock(t, i, after) })
		}
	}
	wg.Wait()
}

// keepBusy holds a lock most of the time.
func keepBusy(ctx context.Context, t *testing.T, m *rlock.Mutex, random *rand.Rand) {
	for ctx.Err() == nil {
		_, unlock, err := m.Lock(ctx)
		if err != nil {
			assert.ErrorIs(t, err, rlock.ErrNotAcquired)
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(random.Int64N(int64(200 * time.Millisecond)))):
		}
		assert.NoError(t, unlock())
	}
}

func (r *recklessness) lock(t *testing.T, i int, after time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	timer := time.AfterFunc(after, cancel)
	defer cancel()
	defer timer.Stop()
	r.calls.Add(1)
	_, unlock, err := r.client.Mutex(cancelName(i)).Lock(ctx)
	if err != nil {
		assert.ErrorIs(t, err, context.Canceled)
		return
	}
	r.held.Add(1)
	assert.NoError(t, unlock())
}

// orphans makes keys without a holder: the callers of acquires leave while the replies are held back. The keys must not
// be renewed, and are removed once the replies are known to be lost.
func (r *recklessness) orphans(t *testing.T, watch rueidis.Client, m *meter) {
	t.Helper()
	const n = 200
	var late atomic.Bool
	late.Store(true)
	r.proxy.OnReply(func(cmd []string) redistest.Action {
		if late.Load() && cmd[0] == "EVALSHA" {
			return redistest.Hold
		}
		return redistest.Pass
	})
	renewed := m.renewals.Load()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, _, err := r.client.Mutex(fmt.Sprintf("orphan:%d", i)).Lock(ctx)
			assert.ErrorIs(t, err, context.Canceled)
		})
	}
	redistest.Eventually(t, drainPatience, func() bool {
		keys, err := do(t, watch, "DBSIZE").AsInt64()
		return err == nil && keys == n
	}, "every orphan's key must exist")
	cancel()
	wg.Wait()

	last := make(map[string]int64)
	for end := time.Now().Add(cancelWatchdog * 2 / 3); time.Now().Before(end); {
		for i := range n {
			key := fmt.Sprintf("orphan:%d", i)
			ttl, err := do(t, watch, "PTTL", key).AsInt64()
			require.NoError(t, err)
			if before, seen := last[key]; seen {
				require.LessOrEqual(t, ttl, before, "PTTL rose")
			}
			last[key] = ttl
		}
	}
	require.Equal(t, renewed, m.renewals.Load(), "no key may be renewed")
	late.Store(false)
	r.proxy.CutAll()
	requireEmpty(t, watch, drainPatience)
}
