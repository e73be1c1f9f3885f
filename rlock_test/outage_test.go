package rlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
		for _, wait := range []time.Duration{0, 200 * time.Millisecond, 0} {
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
	redistest.Parallel(t)
	cluster := redistest.StartCluster(t, 3, 0)
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

// A slot under migration answers ASK, which a dedicated connection does not follow by itself.
func TestReplicasWhileASlotMoves(t *testing.T) {
	redistest.Parallel(t)
	cl := redistest.StartCluster(t, 3, 0)
	cl.BeginMove(t, cl.Slot(t, "x"))
	c := newClient(t, cl.Client(t), rlock.Options{Replicas: 1, ReplicaTimeout: 5 * time.Second}) // a busy machine connects slowly
	_, _, err := c.Mutex("x").Lock(context.Background())
	require.ErrorIs(t, err, rlock.ErrNotReplicated, "acquired, but there is no replica")
	require.ErrorContains(t, err, "0 of 1 replicas")
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
