package rlock_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// unlimited is a bound that no test reaches.
var unlimited = rlock.HandOff{Most: math.MaxInt, For: math.MaxInt64}

func same(l locker, n int) []locker {
	var all []locker
	for range n {
		all = append(all, l)
	}
	return all
}

// Each waiter of a queue costs one command, and the last unlock one more. Waiters send nothing, and no message is published before
// the last unlock.
func TestHandOffCosts(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t, rlock.Options{HandOff: unlimited})
		const n = 20
		a, line := r.line(t, same(r.Mutex(r.name), n)...)
		before := redistest.Commands(t, r.rdb)
		for _, p := range line {
			require.NoError(t, a.unlock())
			a = p.get(t, testTimeout)
			require.NoError(t, a.err)
		}
		during := redistest.Commands(t, r.rdb)
		require.EqualValues(t, n, during["evalsha"]-before["evalsha"])
		require.EqualValues(t, n, during["hset"]-before["hset"])
		require.EqualValues(t, n, during["hdel"]-before["hdel"])
		for _, name := range []string{"eval", "publish", "del", "subscribe", "unsubscribe"} {
			require.Equal(t, before[name], during[name], name)
		}
		require.NoError(t, a.unlock())
		after := redistest.Commands(t, r.rdb)
		require.EqualValues(t, 1, after["evalsha"]-during["evalsha"])
		require.EqualValues(t, 1, after["publish"]-during["publish"])
		r.clear(t)
	})
}

// Other processes see the owner change, but never a free lock or two owners, and receive a message only at the end.
func TestHandOffAsOthersSeeIt(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t, "--notify-keyspace-events", "KA")
	r := newProxiedOn(t, s, rlock.Options{HandOff: unlimited})
	const n = 10
	a, line := r.line(t, same(r.Mutex(r.name), n)...)
	events, heard := make(chan string, 10*n), make(chan string, n)
	listening, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	ready := make(chan struct{}, 2)
	hooked := rueidis.WithOnSubscriptionHook(listening, func(rueidis.PubSubSubscription) { ready <- struct{}{} })
	for channel, to := range map[string]chan string{
		"__keyspace@0__:" + r.name: events, "redisson_lock__channel:{" + r.name + "}": heard,
	} {
		go func() { // ends with stop
			ended <- r.rdb.Receive(hooked, r.rdb.B().Subscribe().Channel(channel).Build(), func(m rueidis.PubSubMessage) { to <- m.Message })
		}()
		<-ready
	}
	for _, p := range line {
		require.NoError(t, a.unlock())
		a = r.gets(t, p)
	}
	require.Empty(t, heard)
	require.NoError(t, a.unlock())
	for range n {
		for _, want := range []string{"hset", "expire", "hdel"} {
			require.Equal(t, want, <-events)
		}
	}
	require.Equal(t, "hdel", <-events)
	require.Equal(t, "del", <-events)
	require.Equal(t, "0", <-heard)
	stop()
	<-ended
	<-ended
	require.Empty(t, events)
	require.Empty(t, heard)
}

// Options.HandOff bounds the number of hand-offs within a process, and the time that they take, before other processes get a turn.
func TestHandOffBounds(t *testing.T) {
	for name, row := range map[string]struct {
		bound    rlock.HandOff
		hold     time.Duration // how long each section takes
		alone    bool          // no other process listens
		handOffs int64
		releases int64 // releases that free the lock
	}{
		"off":             {bound: rlock.HandOff{Most: -1}, releases: 11},
		"off, far":        {bound: rlock.HandOff{Most: math.MinInt, For: math.MaxInt64}, releases: 11},
		"most 1":          {bound: rlock.HandOff{Most: 1, For: time.Hour}, handOffs: 5, releases: 6},
		"most 1, alone":   {bound: rlock.HandOff{Most: 1, For: time.Hour}, alone: true, handOffs: 10, releases: 1},
		"most 3":          {bound: rlock.HandOff{Most: 3, For: time.Hour}, handOffs: 6, releases: 5}, // only one in a row once the other process is known
		"most 10":         {bound: rlock.HandOff{Most: 10, For: time.Hour}, handOffs: 10, releases: 1},
		"long sections":   {bound: rlock.HandOff{For: time.Millisecond}, hold: 3 * time.Millisecond, handOffs: 5, releases: 6},
		"defaults":        {handOffs: 10, releases: 1, bound: rlock.HandOff{For: time.Hour}},
		"a sum too large": {bound: unlimited, handOffs: 10, releases: 1},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			r := newProxied(t, rlock.Options{HandOff: row.bound})
			stop := func() {}
			if !row.alone {
				stop = r.listen(t)
			}
			a, line := r.line(t, same(r.Mutex(r.name), 10)...)
			before := redistest.Commands(t, r.rdb)
			for _, p := range line {
				sleep(row.hold)
				require.NoError(t, a.unlock())
				a = r.gets(t, p)
			}
			sleep(row.hold)
			require.NoError(t, a.unlock())
			after := redistest.Commands(t, r.rdb)
			require.Equal(t, row.handOffs, after["hset"]-before["hset"], "hand-offs")
			published := row.releases
			if row.bound.Most >= 0 {
				published += row.releases - 1 // one message to the first waiter in the queue
			}
			require.Equal(t, published, after["publish"]-before["publish"], "releases")
			stop()
			r.clear(t)
		})
	}
}

// New refuses a negative Options.HandOff.For.
func TestHandOffOptions(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newBareFixture(t)
		for _, o := range []rlock.HandOff{{For: -1}, {For: math.MinInt64, Most: -1}, {For: -time.Nanosecond, Most: 1}} {
			_, err := rlock.New(b.rdb, rlock.Options{HandOff: o})
			require.ErrorContains(t, err, "Options.HandOff.For", "%+v", o)
			require.ErrorContains(t, err, fmt.Sprint(o.For))
		}
	})
}

// With Options.Replicas there are no hand-offs, since replicas must confirm each hold.
func TestNoHandOffWithReplicas(t *testing.T) {
	redistest.Parallel(t)
	master, _ := redistest.StartPair(t)
	r := newProxiedOn(t, master, rlock.Options{Replicas: 1, ReplicaTimeout: 10 * time.Second})
	a, line := r.line(t, same(r.Mutex(r.name), 3)...)
	for _, p := range line {
		require.NoError(t, a.unlock())
		a = r.gets(t, p)
	}
	require.NoError(t, a.unlock())
	require.Zero(t, redistest.Commands(t, r.rdb)["hset"])
	r.clear(t)
}

// A waiter of another process gets its turn after a number of hand-offs, or after a time, even if a process always has waiters of
// its own. Without these bounds it would not.
func TestOtherProcessesGetTheirTurn(t *testing.T) {
	for name, row := range map[string]struct {
		bound rlock.HandOff
		turn  bool
	}{
		"most":     {rlock.HandOff{Most: 2, For: time.Hour}, true},
		"for":      {rlock.HandOff{Most: math.MaxInt, For: time.Millisecond}, true},
		"off":      {rlock.HandOff{Most: -1}, true},
		"defaults": {rlock.HandOff{}, true},
		"no bound": {unlimited, false},
	} {
		for how, handle := range map[string]func(r *proxied) *rlock.Mutex{
			"in memory": func(r *proxied) *rlock.Mutex { return r.handle() },
			"by call":   func(r *proxied) *rlock.Mutex { return r.Mutex(r.name) },
		} {
			redistest.RunVirtual(t, name+"/"+how, func(t *testing.T) {
				r := newProxied(t, rlock.Options{HandOff: row.bound})
				m := handle(r)
				a, line := r.lineOf(t, m, same(m, 4)...)
				stranger := lockAsync(t, r.other.Mutex(r.name))
				r.awaitSubscribers(t, r.name, 2)

				var sections atomic.Int64
				var stop atomic.Bool
				var wg sync.WaitGroup
				for _, p := range line { // each waits again before its next turn
					wg.Go(func() {
						a := p.get(t, testTimeout)
						for {
							if !assert.NoError(t, a.err) {
								return
							}
							sections.Add(1)
							sleep(time.Millisecond)
							for !stop.Load() && waiting(t) < 2 { // until other goroutines wait
								sleep(time.Millisecond)
							}
							assert.NoError(t, a.unlock())
							if stop.Load() {
								return
							}
							_, a.unlock, a.err = m.Lock(context.Background())
						}
					})
				}
				require.NoError(t, a.unlock())
				if row.turn {
					got := r.gets(t, stranger)
					t.Logf("after %d sections", sections.Load())
					stop.Store(true)
					require.NoError(t, got.unlock())
				} else {
					redistest.Eventually(t, testTimeout, func() bool { return sections.Load() > 100 }, "the hand-offs go on")
					stranger.stillWaits(t)
					stop.Store(true)
					require.NoError(t, r.gets(t, stranger).unlock())
				}
				wg.Wait()
				r.clear(t)
			})
		}
	}
}

// Each section sees the writes of the previous one, and no two sections overlap.
func TestHandOffExcludes(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t, rlock.Options{HandOff: unlimited})
		n := 0
		var wg sync.WaitGroup
		for i := range 8 {
			m := []*rlock.Mutex{r.handle(), r.Mutex(r.name), r.FencedMutex(r.name), r.handle(rlock.WithLease(time.Minute))}[i%4]
			wg.Go(func() {
				for range 100 {
					assert.NoError(t, m.Do(context.Background(), func(context.Context) error { n++; return nil }))
				}
			})
		}
		wg.Wait()
		require.Equal(t, 800, n)
		r.clear(t)
	})
}

// Hand-offs work even if the server forgets its scripts before each unlock.
func TestHandOffWithoutScripts(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t, rlock.Options{HandOff: unlimited})
		a, line := r.line(t, same(r.Mutex(r.name), 5)...)
		before := redistest.Commands(t, r.rdb)
		for _, p := range line {
			require.NoError(t, r.do(t, "SCRIPT", "FLUSH").Error())
			require.NoError(t, a.unlock())
			a = r.gets(t, p)
		}
		require.NoError(t, a.unlock())
		after := redistest.Commands(t, r.rdb)
		require.EqualValues(t, 5, after["hset"]-before["hset"])
		require.EqualValues(t, 1, after["publish"]-before["publish"])
		r.clear(t)
	})
}

// A user without the rights for a hand-off releases the lock as without one.
func TestHandOffForbidden(t *testing.T) {
	redistest.Parallel(t)
	for _, command := range []string{"hexists", "hset"} {
		t.Run(command, func(t *testing.T) {
			s := redistest.Start(t)
			b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
			rules := strings.Fields("ACL SETUSER limited on >secret ~* &* +@all -" + command)
			require.NoError(t, b.do(t, rules...).Error())
			b.Client = newClient(t, s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "limited", "secret" }))
			var wg sync.WaitGroup
			n := 0
			for range 4 {
				wg.Go(func() {
					for range 10 {
						assert.NoError(t, b.Mutex(b.name).Do(t.Context(), func(context.Context) error { n++; return nil }))
					}
				})
			}
			wg.Wait()
			require.Equal(t, 40, n)
			require.False(t, b.exists(t, b.name))
		})
	}
}
