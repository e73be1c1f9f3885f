package rlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// An attempt without an answer from Redis says nothing about the lock: its error differs from "held by another". TryLock with
// wait 0 makes one attempt, for at most a second.
func TestOutageIsNotARefusal(t *testing.T) {
	for name, down := range map[string]func(*redistest.Server){"hangs": (*redistest.Server).Pause, "refuses": (*redistest.Server).Stop} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			s := redistest.Start(t)
			c := newClient(t, s.Client(t))
			loadScripts(t, c)
			down(s)
			defer s.Resume()
			began := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
			defer cancel()
			for name, p := range map[string]pendingLock{
				"TryLock(0)":     lockAsync(t, tryFor{c.Mutex("a"), 0}),
				"TryLock(200ms)": lockAsync(t, tryFor{c.Mutex("b"), 200 * time.Millisecond}),
				"Lock":           lockAsync(t, under{ctx, c.Mutex("c")}),
			} {
				got := p.get(t, testTimeout)
				requireTookAtMost(t, time.Second, began, got.at)
				require.ErrorIs(t, got.err, rlock.ErrUnreachable, name)
				require.ErrorIs(t, got.err, rlock.ErrNotAcquired, name)
				if name != "Lock" {
					require.NotErrorIs(t, got.err, context.DeadlineExceeded, "no caller's ctx has expired")
				}
				require.NotContains(t, got.err.Error(), "\n")
			}
		})
	}
}

// The same error reaches callers that sent nothing themselves, since an earlier local waiter's attempt is unanswered.
func TestOutageIsNoRefusalBehindOthers(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := newClient(t, s.Client(t))
		loadScripts(t, c)
		s.Pause()
		defer s.Resume()
		for _, wait := range []time.Duration{0, 0, 200 * time.Millisecond, 0, 0} {
			_, _, err := c.Mutex("x").TryLock(context.Background(), wait)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			require.ErrorIs(t, err, rlock.ErrUnreachable, wait)
		}
	})
}

// Redis hangs while Locks continuously start and give up. The calls that they leave behind meanwhile are bounded by a
// constant, and once Redis is back few undo their effects.
func TestAbandonedLocksDuringAStall(t *testing.T) {
	redistest.OnlyVirtual(t, "a real machine may be slower than the stall", func(t *testing.T) {
		const stall, each, patience = 2 * time.Second, 5 * time.Millisecond, 100 * time.Millisecond
		s := redistest.Start(t)
		c := newClient(t, s.Client(t))
		loadScripts(t, c)
		other := fixture{rdb: s.Client(t)}
		s.Pause()
		var callers sync.WaitGroup
		tick := time.NewTicker(each)
		defer tick.Stop()
		abandoned := 0
		for end := time.Now().Add(stall); time.Now().Before(end); abandoned++ {
			<-tick.C
			m := c.Mutex(fmt.Sprint("order:", abandoned))
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				_, _, err := m.Lock(ctx)
				assert.ErrorIs(t, err, rlock.ErrUnreachable)
			})
		}
		callers.Wait()
		s.Resume()
		redistest.Eventually(t, testTimeout, func() bool {
			n, err := other.do(t, "DBSIZE").AsInt64()
			return err == nil && n == 0
		}, "nothing is left in Redis")
		calls := scriptCalls(t, other)
		for i := range abandoned {
			_, unlock, err := c.Mutex(fmt.Sprint("order:", i)).TryLock(context.Background(), 0)
			require.NoError(t, err, "no Lock has stayed in its queue")
			require.NoError(t, unlock())
		}
		c.Close()
		t.Logf("%d Locks, then %d script calls", abandoned, calls)
		require.Less(t, calls, 50+2*int(patience/each), "calls do not grow with the number of Locks")
	})
}

// lossy is a client that loses the answer to one command for a key, and hangs in pipelines that use another key.
type lossy struct {
	rueidis.Client
	mu    sync.Mutex // guards loses
	loses map[uint16]bool
	hangs uint16
	until chan struct{}
}

func (l *lossy) slot(key string) uint16 {
	cmd := l.B().Exists().Key(key).Build()
	return cmd.Slot()
}

// loseNext loses the answer to the next command for a key.
func (l *lossy) loseNext(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loses[l.slot(key)] = true
}

func (l *lossy) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	l.mu.Lock()
	lost := l.loses[cmd.Slot()]
	delete(l.loses, cmd.Slot())
	l.mu.Unlock()
	if !lost {
		return l.Client.Do(ctx, cmd)
	}
	l.Client.Do(ctx, cmd.Pin())
	return l.Client.Do(canceled(), cmd)
}

func (l *lossy) DoMulti(ctx context.Context, all ...rueidis.Completed) []rueidis.RedisResult {
	for _, cmd := range all {
		if cmd.Slot() == l.hangs {
			<-l.until
			break
		}
	}
	return l.Client.DoMulti(ctx, all...)
}

// A silent node of a cluster does not delay the cleanup on other nodes after calls without an answer.
func TestSilentNodeHoldsUpNoOtherSweep(t *testing.T) {
	cluster := redistest.SharedCluster(t)
	redistest.Parallel(t)
	b := fixture{rdb: cluster.Client(t), name: redistest.Name(t)}
	rdb := &lossy{Client: b.rdb, loses: make(map[uint16]bool), until: make(chan struct{})}
	b.Client = newClient(t, rdb)
	t.Cleanup(func() { close(rdb.until) })
	loadScripts(t, b.Client)
	silent, well := "{a}:"+b.name, "{b}:"+b.name // two slots
	rdb.hangs = rdb.slot(silent)
	for _, name := range []string{silent, well} { // Redis may have received the first copy of the command, and run it later
		rdb.loseNext(name)
		var owner string
		require.NoError(t, b.Mutex(name).Do(context.Background(), func(ctx context.Context) error {
			owner = rlock.Owner(ctx)
			return nil
		}))
		require.NoError(t, b.do(t, "HSET", name, owner, "1").Error())
	}
	redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, well) }, "removed")
	require.True(t, b.exists(t, silent))
	require.NoError(t, b.do(t, "DEL", silent).Error())
}

// scriptCalls returns the number of script calls that the server has run.
func scriptCalls(t *testing.T, b fixture) int {
	t.Helper()
	n := 0
	for name, calls := range redistest.Commands(t, b.rdb) {
		if strings.HasPrefix(name, "eval") {
			n += int(calls)
		}
	}
	return n
}

// connectDedicated makes a dedicated connection to each node: Options.ReplicaTimeout bounds the time in which a Lock gets one, too.
func connectDedicated(t *testing.T, rdb rueidis.Client) {
	t.Helper()
	for _, node := range rdb.Nodes() {
		require.NoError(t, node.Dedicated(func(conn rueidis.DedicatedClient) error {
			return conn.Do(t.Context(), conn.B().Ping().Build()).Error()
		}))
	}
}

// A slot under migration answers ASK, which a dedicated connection does not follow by itself.
func TestReplicasWhileASlotMoves(t *testing.T) {
	redistest.Parallel(t)
	cl := redistest.StartCluster(t, 3, 0)
	cl.BeginMove(t, cl.Slot(t, "x"))
	rdb := cl.Client(t)
	connectDedicated(t, rdb)
	_, _, err := newClient(t, rdb, rlock.Options{Replicas: 1}).Mutex("x").Lock(context.Background())
	require.ErrorIs(t, err, rlock.ErrNotReplicated, "there is no replica")
	require.Positive(t, redistest.Commands(t, rdb)["wait"], "it was acquired")
}

// With Replicas, an acquire needs a dedicated connection. If the pool is exhausted, even by a subscription of the library itself,
// Lock reports it in time, and neither Close nor anything else waits for a connection.
func TestReplicasWithoutAConnection(t *testing.T) {
	for _, last := range []string{"others", "our subscription"} {
		redistest.RunVirtual(t, last, func(t *testing.T) {
			s := redistest.Start(t)
			rdb := s.Client(t, func(o *rueidis.ClientOption) { o.BlockingPoolSize = 1 })
			b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
			b.Client = newClient(t, b.rdb)
			c := newClient(t, rdb, rlock.Options{Replicas: 1, ReplicaTimeout: 500 * time.Millisecond}) // dialing can take 100 ms
			var p pendingLock
			if last == "others" {
				conn, giveBack := rdb.Dedicate()
				require.NoError(t, conn.Do(context.Background(), conn.B().Ping().Build()).Error())
				defer giveBack()
				p = lockAsync(t, c.Mutex(b.name))
			} else {
				_, unlock := enter(t, context.Background(), b.Mutex(b.name))
				p = lockAsync(t, c.Mutex(b.name))
				b.awaitSubscribers(t, b.name, 1)
				require.NoError(t, unlock())
			}
			began := time.Now()
			got := p.get(t, testTimeout)
			requireTookAtMost(t, 3*time.Second, began, got.at)
			require.ErrorIs(t, got.err, rlock.ErrNotReplicated)
			require.ErrorContains(t, got.err, "BlockingPoolSize")
			began = time.Now()
			c.Close()
			requireTookAtMost(t, 5*time.Second, began, time.Now())
			require.False(t, b.exists(t, b.name))
		})
	}
}

// distant is a Redis that is some time away, or silent from a command on. Then rueidis notices after noticed, whatever the time of the call
// is, as on a connection that others share.
type distant struct {
	rueidis.Client

	away   atomic.Int64           // nanoseconds of a round trip
	silent atomic.Bool            // no command is answered any more
	from   atomic.Pointer[string] // the first of those; nil: none
}

const noticed = 11 * time.Second

// pass waits for the answer, or the end of ctx; it reports false if there is none.
func (d *distant) pass(ctx context.Context, cmd rueidis.Completed) bool {
	sleep(time.Duration(d.away.Load()))
	if from := d.from.Load(); from != nil && cmd.Commands()[0] == *from {
		d.silent.Store(true)
	}
	if d.silent.Load() {
		select {
		case <-time.After(noticed):
		case <-ctx.Done():
		}
		return false
	}
	return true
}

func (d *distant) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if !d.pass(ctx, cmd) {
		return d.Client.Do(canceled(), cmd)
	}
	return d.Client.Do(ctx, cmd)
}

func (d *distant) DoMulti(ctx context.Context, all ...rueidis.Completed) []rueidis.RedisResult {
	if !d.pass(ctx, all[0]) {
		return d.Client.DoMulti(canceled(), all...)
	}
	return d.Client.DoMulti(ctx, all...)
}

// fromAfar runs a test of a Client whose Redis is distant.
func fromAfar(t *testing.T, test func(t *testing.T, b fixture, d *distant)) {
	t.Helper()
	redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
		b := newFixture(t)
		d := &distant{Client: b.rdb}
		b.Client = newClient(t, d)
		test(t, b, d)
	})
}

// The first attempt of a TryLock has a second. A later one ends with the wait. A majority that was about to answer is no outage.
func TestTryLockEndsInALaterAttempt(t *testing.T) {
	for name, of := range map[string]func([]rlock.Locker) rlock.Locker{
		"a mutex": func(m []rlock.Locker) rlock.Locker { return m[0] },
		"all":     func(m []rlock.Locker) rlock.Locker { return rlock.All(m...) },
		"quorum":  func(m []rlock.Locker) rlock.Locker { return rlock.Quorum(m...) },
	} {
		for _, slow := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", slow ", slow), func(t *testing.T) {
				redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
					b := newFixture(t)
					var servers []*distant
					var mine, theirs []rlock.Locker
					for range 3 {
						d := &distant{Client: redistest.Start(t).Client(t)}
						if slow {
							d.away.Store(int64(80 * time.Millisecond))
						}
						servers = append(servers, d)
						mine = append(mine, newClient(t, d).Mutex(b.name, rlock.WithLease(time.Minute)))
						theirs = append(theirs, newClient(t, d.Client).Mutex(b.name))
					}
					bg := context.Background()
					_, unlock := enter(t, bg, of(theirs))
					began := time.Now()
					tried := async(func() error {
						_, _, err := of(mine).TryLock(bg, 300*time.Millisecond)
						return err
					})
					sleep(240 * time.Millisecond)
					for _, d := range servers {
						d.silent.Store(!slow)
					}
					require.NoError(t, unlock())
					err := <-tried
					require.ErrorIs(t, err, rlock.ErrNotAcquired)
					if slow && name == "quorum" {
						require.NotErrorIs(t, err, rlock.ErrUnreachable, "a majority was about to answer")
					}
					require.Equal(t, 300*time.Millisecond, time.Since(began))
					for _, d := range servers {
						d.silent.Store(false)
					}
				})
			})
		}
	}
}

// A kept fenced lock is had in one round trip, even during the first look at it, which takes several. Tokens rise.
func TestKeptFencedLockFarAway(t *testing.T) {
	const away = 350 * time.Millisecond
	fromAfar(t, func(t *testing.T, b fixture, d *distant) {
		keep(t, b.Client, b.FencedMutex(b.name+":0", rlock.WithLinger(long)))
		m := b.FencedMutex(b.name, rlock.WithLinger(long))
		d.away.Store(int64(away))
		var last int64
		for i := range 12 {
			began := time.Now()
			ctx, unlock, err := m.TryLock(context.Background(), 0)
			require.NoError(t, err)
			require.LessOrEqual(t, time.Since(began), away)
			token, ok := m.FencingToken(ctx)
			require.True(t, ok)
			require.Greater(t, token, last)
			last = token
			require.NoError(t, unlock())
			sleep(time.Duration(i) * away / 4) // so that the look ends at each moment
		}
	})
}

// Lock returns when its ctx is done, on a silent Redis, too: also while a kept lock is looked at, with as many calls left behind as there
// may be.
func TestKeptLockIsGivenBackInTheBackground(t *testing.T) {
	fromAfar(t, func(t *testing.T, b fixture, d *distant) {
		bg := context.Background()
		keep(t, b.Client, b.FencedMutex(b.name+":0", rlock.WithLinger(long)))
		look := "ZCARD"
		d.from.Store(&look)
		m := b.FencedMutex(b.name, rlock.WithLinger(long))
		lockAndUnlock(t, m)
		synctest.Wait()
		require.True(t, d.silent.Load())
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(bg, 150*time.Millisecond)
				defer cancel()
				requireLockFails(t, ctx, b.Mutex(fmt.Sprint(b.name, ":", i+1)), context.DeadlineExceeded)
			})
		}
		all.Wait()
		sleep(150 * time.Millisecond)
		ctx, cancel := context.WithTimeout(bg, 300*time.Millisecond)
		defer cancel()
		began := time.Now()
		requireLockFails(t, ctx, m, context.DeadlineExceeded)
		require.Equal(t, 300*time.Millisecond, time.Since(began))
		d.from.Store(nil)
		d.silent.Store(false)
	})
}

// A Lock on a silent Redis takes no more than one call longer if the lock is kept and must be given up first.
func TestLockOfAKeptLockInSilence(t *testing.T) {
	for _, what := range []string{"on other terms", "looked at", "together with others"} {
		t.Run(what, func(t *testing.T) {
			fromAfar(t, func(t *testing.T, b fixture, d *distant) {
				keep(t, b.Client, b.FencedMutex(b.name+":0", rlock.WithLinger(long)))
				var m rlock.Locker = b.Mutex(b.name, rlock.WithLease(time.Minute))
				switch what {
				case "on other terms":
					keep(t, b.Client, b.Mutex(b.name, rlock.WithLinger(long)))
				case "looked at":
					look := "ZCARD"
					d.from.Store(&look)
					fenced := b.FencedMutex(b.name, rlock.WithLinger(long))
					lockAndUnlock(t, fenced)
					m = fenced
				case "together with others":
					var all []rlock.Locker
					for i := range 5 {
						name := fmt.Sprint(b.name, ":", i+1)
						keep(t, b.Client, b.Mutex(name, rlock.WithLinger(long)))
						all = append(all, b.Mutex(name))
					}
					m = rlock.All(all...)
				}
				synctest.Wait()
				d.silent.Store(true)
				notKept := lockAsync(t, b.Mutex(b.name+":9", rlock.WithLease(time.Minute)))
				requireLockFails(t, context.Background(), m, rlock.ErrUnreachable)
				ended := time.Now()
				other := notKept.get(t, testTimeout)
				require.ErrorIs(t, other.err, rlock.ErrUnreachable)
				require.LessOrEqual(t, ended.Sub(other.at), calls.Timeout)
			})
		})
	}
}

// Shutdown of a Client without sections takes no longer than Close, even if it keeps locks and Redis is silent.
func TestShutdownWithKeptLocksInSilence(t *testing.T) {
	fromAfar(t, func(t *testing.T, b fixture, d *distant) {
		for i := range 3 {
			keep(t, b.Client, b.Mutex(fmt.Sprint(b.name, ":", i), rlock.WithLinger(long)))
		}
		d.silent.Store(true)
		began := time.Now()
		require.NoError(t, b.Shutdown(context.Background()))
		require.LessOrEqual(t, time.Since(began), 5*time.Second)
		sleep(rlock.DefaultWatchdogTimeout) // nothing is left of them
	})
}
