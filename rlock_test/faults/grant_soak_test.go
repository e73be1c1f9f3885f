package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// soakName is a lock of the soak, with the ctx of the section inside.
type soakName struct {
	name string

	sections atomic.Int64

	mu     sync.Mutex // guards inside
	inside context.Context
}

func (n *soakName) enter(ctx context.Context) (alone bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	alone = n.inside == nil || n.inside.Err() != nil
	n.inside = ctx
	return alone
}

func (n *soakName) leave(ctx context.Context) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.inside == ctx {
		n.inside = nil
	}
	n.sections.Add(1)
}

// Faults 1 and 2, G1, G3 to G5, G9: goroutines of several clients take a few locks, with waits that are cancelled, short
// or zero, while connections are killed. After each burst of faults the locks go on within a grant lease, and nobody
// waits longer than a few of them. No key, queue place, channel or goroutine is left.
func TestSoakOfGrants(t *testing.T) {
	const clients, goroutines = 4, 5
	const longest = 5 * grantLease
	// Longer than longest, so that a waiter that sleeps until a lease ends fails the test. The sweep after an unanswered
	// acquire lasts as long as the lease.
	const watchdog = 15 * time.Second
	seed := faultsSeed(t)
	server := redistest.Start(t)
	rdb := server.Client(t)
	var names []*soakName
	for i := range 2 {
		names = append(names, &soakName{name: fmt.Sprintf("soak:%d", i)})
	}
	var over atomic.Bool
	defer over.Store(true)
	var sections, cancelled, refused, lost, overlaps, slowest atomic.Int64
	var wrong atomic.Pointer[error]
	var proxies []*redistest.Proxy
	var doomed [clients]atomic.Bool // the client's next grant is cut off
	var all []*rlock.Client
	var wg sync.WaitGroup
	turn := func(rng *rand.Rand, c *rlock.Client) {
		n := names[rng.IntN(len(names))]
		m := c.Mutex(n.name)
		if rng.IntN(2) == 0 {
			m = c.FencedMutex(n.name)
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		began := time.Now()
		var locked context.Context
		var unlock rlock.UnlockFunc
		var err error
		switch rng.IntN(5) {
		case 0:
			locked, unlock, err = m.TryLock(ctx, 0)
		case 1:
			locked, unlock, err = m.TryLock(ctx, time.Duration(rng.IntN(50))*time.Millisecond)
		case 2:
			timer := time.AfterFunc(time.Duration(rng.IntN(50))*time.Millisecond, cancel)
			defer timer.Stop()
			locked, unlock, err = m.Lock(ctx)
		default:
			locked, unlock, err = m.Lock(ctx)
		}
		if waited := int64(time.Since(began)); waited > slowest.Load() {
			slowest.Store(waited)
		}
		switch {
		case errors.Is(err, context.Canceled):
			cancelled.Add(1)
			return
		case errors.Is(err, rlock.ErrNotAcquired):
			refused.Add(1)
			return
		case err != nil:
			wrong.Store(&err)
			return
		}
		if !n.enter(locked) {
			overlaps.Add(1)
		}
		sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
		n.leave(locked)
		sections.Add(1)
		if err := unlock(); errors.Is(err, rlock.ErrLost) || context.Cause(locked) != nil && errors.Is(context.Cause(locked), rlock.ErrLost) {
			lost.Add(1)
		} else if err != nil && !errors.Is(err, rlock.ErrNotHeld) {
			wrong.Store(&err)
		}
	}
	for i := range clients {
		proxy := redistest.StartProxy(t, server.Addr())
		c := newClient(t, redistest.Dial(t, proxy.Addr()), rlock.Options{WatchdogTimeout: watchdog})
		proxy.OnReply(func(cmd []string) redistest.Action {
			if isGrant(cmd) && doomed[i].CompareAndSwap(true, false) {
				return redistest.Cut
			}
			return redistest.Pass
		})
		proxies, all = append(proxies, proxy), append(all, c)
		for j := range goroutines {
			rng := rand.New(rand.NewPCG(seed, uint64(i*goroutines+j)))
			wg.Go(func() {
				for !over.Load() {
					turn(rng, c)
				}
			})
		}
	}
	rng := rand.New(rand.NewPCG(seed, 1<<32))
	for end := time.Now().Add(faultsDuration(t, 20*time.Second)); time.Now().Before(end); {
		histFor(2*time.Second, 250*time.Millisecond, func() {
			switch rng.IntN(3) {
			case 0:
				proxies[rng.IntN(clients)].CutAll()
			case 1:
				_ = do(t, rdb, "CLIENT", "KILL", "TYPE", "pubsub").Error()
			default:
				doomed[rng.IntN(clients)].Store(true)
			}
		})
		for i := range doomed {
			doomed[i].Store(false)
		}
		for _, n := range names {
			enough := n.sections.Load() + clients*goroutines
			redistest.Eventually(t, grantLease+2*promptly, func() bool { return n.sections.Load() >= enough }, n.name+" must go on")
		}
	}
	over.Store(true)
	done := make(chan struct{})
	go func() { // ends with the workers
		defer close(done)
		wg.Wait()
	}()
	select {
	case <-done:
	case <-time.After(longest):
		require.FailNow(t, "a Lock did not return", "queues %v and %v, locks %v and %v", queued(t, rdb, names[0].name), queued(t, rdb, names[1].name),
			owners(t, rdb, names[0].name), owners(t, rdb, names[1].name))
	}
	t.Logf("%d sections, %d cancelled, %d refused, %d lost, longest wait %v", sections.Load(), cancelled.Load(), refused.Load(), lost.Load(), time.Duration(slowest.Load()))
	if err := wrong.Load(); err != nil {
		require.NoError(t, *err)
	}
	require.Zero(t, overlaps.Load(), "G1")
	require.Positive(t, cancelled.Load())
	require.Less(t, time.Duration(slowest.Load()), longest)
	redistest.Eventually(t, 2*promptly, func() bool {
		for _, n := range names {
			if k, err := do(t, rdb, "EXISTS", n.name, queueOf(n.name)).AsInt64(); err != nil || k != 0 {
				return false
			}
		}
		channels, err := do(t, rdb, "PUBSUB", "CHANNELS").AsStrSlice()
		return err == nil && len(channels) == 0
	}, "no key, queue place or channel may be left")
	require.Zero(t, histLeft(clients), "goroutines of returned calls")
	for _, c := range all {
		c.Close()
	}
	require.Zero(t, histLeft(0), "goroutines after Close")
}
