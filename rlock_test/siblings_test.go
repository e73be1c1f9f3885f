package rlock_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Siblings are goroutines that act for one owner, because they were started in a section: what one
// of them does for a lock meets what the others do.

// longestPause is more than the longest time between two tries to release a field in doubt.
const longestPause = 2500 * time.Millisecond

// family is an owner whose siblings lock b.name. It holds a lock around, so that it stays the same
// owner when that one is unlocked.
type family struct {
	bench // past the proxy
	proxy *redistest.Proxy
	lock  *rlock.Client // through the proxy
	ctx   context.Context
}

func newFamily(t *testing.T) family {
	t.Helper()
	s := redistest.Start(t)
	f := family{proxy: redistest.StartProxy(t, s.Addr())}
	f.bench = bench{rdb: s.Client(t), name: redistest.Name(t)}
	f.Client = newClient(t, f.rdb)
	f.lock = newClient(t, redistest.Dial(t, f.proxy.Addr()))
	ctx, unlock, err := f.lock.Mutex(f.name + ":around").Lock(context.Background())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, unlock()) })
	f.ctx = ctx
	loadScripts(t, f.lock)
	return f
}

// stays proves that a sibling has a hold of its own, which nothing else of its family ends.
func (f family) stays(t *testing.T, a attempt) {
	t.Helper()
	require.NoError(t, a.err)
	for end := time.Now().Add(longestPause); time.Now().Before(end); pass(10 * time.Millisecond) {
		require.Equal(t, map[string]int64{rlock.Owner(a.ctx): 1}, f.fields(t, f.name))
		require.NoError(t, a.ctx.Err())
	}
	_, _, err := f.Mutex(f.name).TryLock(context.Background(), 0)
	require.ErrorIs(t, err, rlock.ErrNotAcquired, "G1")
	require.NoError(t, a.unlock())
	require.False(t, f.exists(t, f.name))
}

// under is a locker whose Lock goes under ctx, whatever ctx it is given.
type under struct {
	ctx context.Context
	locker
}

func (u under) Lock(context.Context) (context.Context, rlock.UnlockFunc, error) {
	return u.locker.Lock(u.ctx)
}

// A Lock of a sibling that comes while the last level is being unlocked finds that hold ended, and
// takes the lock anew. It must not go on with the record of the ended hold, whose lease is over.
func TestSiblingMeetsTheLastUnlock(t *testing.T) {
	redistest.Parallel(t)
	for name, wait := range map[string]time.Duration{"Lock": -1, "TryLock(0)": 0, "TryLock(wait)": atMost} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			f := newFamily(t)
			m := f.lock.Mutex(f.name)
			_, unlock, err := m.Lock(f.ctx)
			require.NoError(t, err)
			f.proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
			unlocked := async(unlock)
			redistest.Eventually(t, 5*time.Second, func() bool { return f.proxy.Held() == 1 }, "the unlock is under way")
			var l locker = m
			if wait >= 0 {
				l = tryFor{m, wait}
			}
			sibling := lockAsync(t, under{f.ctx, l})
			redistest.Eventually(t, 5*time.Second, func() bool { return behind() == 1 }, "the sibling waits for it")
			f.proxy.Release()
			require.NoError(t, within(t, unlocked, 5*time.Second))
			f.stays(t, sibling.get(t, 5*time.Second))
		})
	}
}

// A sibling's acquire was lost, and the sibling gave up while another held the lock: its field is
// swept, for the lost call may still take the lock. So the next sibling uses another field.
func TestSweptFieldIsNotUsedByASibling(t *testing.T) {
	redistest.Parallel(t)
	f := newFamily(t)
	_, unlockOther, err := f.Mutex(f.name).Lock(context.Background())
	require.NoError(t, err)
	f.proxy.OnRequest(redistest.Nth(1, "EVALSHA", redistest.Cut))
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	first := lockAsync(t, under{ctx, f.lock.Mutex(f.name)})
	f.awaitSubscribers(t, f.name, 1)
	second := lockAsync(t, under{f.ctx, f.lock.Mutex(f.name)})
	redistest.Eventually(t, 5*time.Second, func() bool { return behind() == 1 }, "it waits behind the first")
	cancel()
	require.ErrorIs(t, first.get(t, 5*time.Second).err, rlock.ErrNotAcquired)
	require.NoError(t, unlockOther())
	got := second.get(t, 5*time.Second)
	require.NoError(t, got.err)
	require.NotEqual(t, rlock.Owner(f.ctx), rlock.Owner(got.ctx))
	f.stays(t, got)
}

// An unlock that failed is tried further in the background. The owner's next hold is not what it
// ends.
func TestFailedUnlockSparesTheOwnersNextHold(t *testing.T) {
	redistest.Parallel(t)
	f := newFamily(t)
	m := f.lock.Mutex(f.name)
	ctx, unlock, err := m.Lock(f.ctx)
	require.NoError(t, err)
	f.proxy.Refuse(true)
	f.proxy.CutAll()
	require.Error(t, within(t, async(unlock), 3*time.Second+soon))
	f.proxy.Refuse(false)
	got := lockAsync(t, under{f.ctx, m}).get(t, 10*time.Second)
	require.NoError(t, got.err)
	require.NotEqual(t, rlock.Owner(ctx), rlock.Owner(got.ctx), "the field that is released in the background")
	f.stays(t, got)
}

// layers locks three names in nested sections, each with siblings inside that lock the next ones, in
// one order, so that nothing waits for itself.
type layers struct {
	clients []*rlock.Client
	names   [3]string
	in      [3]ledger
	unlock  func(error) // is told what each unlock returned
}

// run locks one of the names from on. Who calls it with a client of its own is another owner; who
// calls it under a ctx of a section is a sibling.
func (l *layers) run(ctx context.Context, client, depth, from int) {
	if rand.N(3) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rand.N(20*time.Millisecond))
		defer cancel()
	}
	i := from + rand.N(len(l.names)-from)
	m := l.clients[client].Mutex(l.names[i])
	if rand.N(4) == 0 {
		m = l.clients[client].Mutex(l.names[i], rlock.WithLease(atMost))
	}
	var how locker = m
	switch rand.N(3) {
	case 0:
		how = tryFor{m, 0}
	case 1:
		how = tryFor{m, rand.N(10 * time.Millisecond)}
	}
	bounded, cancel := context.WithTimeout(ctx, 2*time.Second) // bounds the section, too
	defer cancel()
	locked, unlock, err := how.Lock(bounded)
	if err != nil {
		return
	}
	l.in[i].enter(locked)
	var inside sync.WaitGroup
	if depth < 3 {
		for range rand.N(4) {
			inside.Go(func() { l.run(locked, client, depth+1, i) })
		}
	}
	early := rand.N(3) == 0 // the siblings inside are stragglers then
	if !early {
		inside.Wait()
	}
	l.in[i].leave(locked)
	l.unlock(unlock())
	inside.Wait()
}

// ledger knows who is in the sections of a lock.
type ledger struct {
	mu       sync.Mutex // guards the following
	live     map[context.Context]string
	overlaps int
}

func (l *ledger) enter(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	me := rlock.Owner(ctx)
	for other, owner := range l.live {
		if owner != me && other.Err() == nil && ctx.Err() == nil {
			l.overlaps++
		}
	}
	if l.live == nil {
		l.live = make(map[context.Context]string)
	}
	l.live[ctx] = me
}

func (l *ledger) leave(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.live, ctx)
}

// G1 and G5 for many owners with siblings at every level, who are cancelled, go early, or lose their
// connections.
func TestNestedSiblings(t *testing.T) {
	for name, cut := range map[string]bool{"calm": false, "connections are cut": true} {
		t.Run(name, func(t *testing.T) {
			before := ours()
			s := redistest.Start(t)
			proxy := redistest.StartProxy(t, s.Addr())
			b := bench{rdb: s.Client(t)}
			l := layers{names: [3]string{"a", "b", "c"}, unlock: func(err error) {
				assert.NotErrorIs(t, err, rlock.ErrLost)
			}}
			for range 2 {
				l.clients = append(l.clients, newClient(t, redistest.Dial(t, proxy.Addr())))
			}
			var owners sync.WaitGroup
			end := time.Now().Add(3 * time.Second)
			for i := range 16 {
				owners.Go(func() {
					for time.Now().Before(end) {
						l.run(context.Background(), i%2, 0, 0)
					}
				})
			}
			for cut && time.Now().Before(end) {
				pass(30 * time.Millisecond)
				proxy.CutAll()
			}
			require.NoError(t, within(t, async(func() error { owners.Wait(); return nil }), atMost), "nobody is stuck")
			for i := range l.in {
				require.Zero(t, l.in[i].overlaps, l.names[i])
				require.Empty(t, l.in[i].live)
			}
			redistest.Eventually(t, 20*time.Second, func() bool {
				n, err := b.do(t, "DBSIZE").AsInt64()
				return err == nil && n == 0
			}, "no keys")
			for _, c := range l.clients {
				c.Close()
			}
			awaitGone(t, before)
			redistest.Eventually(t, 5*time.Second, func() bool {
				channels, err := b.do(t, "PUBSUB", "CHANNELS").AsStrSlice()
				return err == nil && len(channels) == 0
			}, "no channels")
		})
	}
}

// Close at any moment of nested sections with siblings: every unlock works, also of what was opened
// while Close ran, and then nothing is left.
func TestCloseAmongSiblings(t *testing.T) {
	before := ours()
	s := redistest.Start(t)
	b := bench{rdb: s.Client(t)}
	rdb := s.Client(t)
	for range 30 {
		c, err := rlock.New(rdb, rlock.Options{})
		require.NoError(t, err)
		l := layers{clients: []*rlock.Client{c}, names: [3]string{"a", "b", "c"}, unlock: func(err error) {
			assert.NoError(t, err)
		}}
		var owners sync.WaitGroup
		for range 6 {
			owners.Go(func() {
				for range 20 {
					l.run(context.Background(), 0, 0, 0)
				}
			})
		}
		pass(rand.N(15 * time.Millisecond))
		c.Close()
		owners.Wait()
		redistest.Eventually(t, 5*time.Second, func() bool {
			n, err := b.do(t, "DBSIZE").AsInt64()
			return err == nil && n == 0
		}, "no keys")
	}
	awaitGone(t, before)
}
