package lua_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

// callContext is a ctx like the library's: it has a deadline, but ends only through done.
type callContext struct {
	context.Context
	done chan struct{}
}

func newCallContext() callContext {
	return callContext{Context: context.Background(), done: make(chan struct{})}
}

func (c callContext) Deadline() (time.Time, bool) { return time.Now().Add(time.Minute), true }
func (c callContext) Done() <-chan struct{}       { return c.done }
func (c callContext) Err() error {
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}

// exhaust takes the only connection of a blocking pool, and returns a function that gives it back.
func exhaust(t *testing.T, l lab) (giveBack func()) {
	t.Helper()
	conn, giveBack := l.rdb.Dedicate()
	t.Cleanup(giveBack)
	require.NoError(t, conn.Do(t.Context(), conn.B().Exists().Key(l.name).Build()).Error())
	return giveBack
}

func onePerPool(o *rueidis.ClientOption) { o.BlockingPoolSize = 1 }

func (l lab) replicated(c *lua.Connections, wait time.Duration) lua.AcquireArgs {
	return lua.AcquireArgs{
		Name: l.name, Fence: l.fence, Owner: me, Lease: lease, Count: 1, Replicas: 1, ReplicaWait: wait, Connections: c,
	}
}

// deployments are servers without replicas.
func deployments(t *testing.T, test func(t *testing.T, servers []*redistest.Server, dial func(*testing.T) lab)) {
	t.Helper()
	t.Run("standalone", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		test(t, []*redistest.Server{s}, func(t *testing.T) lab { return newLab(t, s.Client(t, onePerPool)) })
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t, 3, 0)
		test(t, c.Nodes(), func(t *testing.T) lab { return newLab(t, c.Client(t, onePerPool)) })
	})
}

func TestAcquireWithoutReplicas(t *testing.T) {
	t.Parallel()
	deployments(t, func(t *testing.T, _ []*redistest.Server, dial func(*testing.T) lab) {
		for name, test := range map[string]func(*testing.T, lab){
			"nothing sent":  noConnectionSendsNothing,
			"closed client": noConnectionOfAClosedClient,
			"no connection": endWithoutConnection,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, dial(t))
			})
		}
		t.Run("in WAIT", func(t *testing.T) { endDuringWait(t, dial(t)) }) // before the others: it counts clients in WAIT
	})
}

func TestAcquireWithReplicas(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.Start(t, "--replicaof", "127.0.0.1", port(t, master))
	l := newLab(t, master.Client(t, onePerPool))
	redistest.Eventually(t, 20*time.Second, func() bool {
		acquired, err := lua.Acquire(t.Context(), l.rdb, l.replicated(nil, 100*time.Millisecond))
		return err == nil && acquired.Unconfirmed == nil
	}, "the replica is in step")
	l.must("DEL", l.name, l.fence)

	var c lua.Connections
	for token := int64(1); token <= 3; token++ { // on the same connection, which comes back each time
		got, err := lua.Acquire(t.Context(), l.rdb, l.replicated(&c, long))
		require.NoError(t, err)
		require.Equal(t, lua.AcquireReply{Status: lua.Acquired, Token: token}, got)
		l.must("DEL", l.name)
	}

	replica.Pause()
	defer replica.Resume()
	got, err := lua.Acquire(t.Context(), l.rdb, l.replicated(&c, 50*time.Millisecond))
	require.NoError(t, err)
	require.Equal(t, lua.Acquired, got.Status)
	require.Equal(t, "0 of 1 replicas within 50ms", got.Unconfirmed.Error())

	// Redis would wait for this connection's earlier writes.
	a := l.replicated(&c, long)
	a.Owner = next
	got, err = lua.Acquire(t.Context(), l.rdb, a)
	require.NoError(t, err)
	require.Equal(t, lua.Held, got.Status)
	require.Equal(t, me, got.Holder)
}

func port(t *testing.T, s *redistest.Server) string {
	t.Helper()
	_, port, err := net.SplitHostPort(s.Addr())
	require.NoError(t, err)
	return port
}

// asked is a client that counts the calls for a connection that have not returned.
type asked struct {
	rueidis.Client
	now *atomic.Int32
}

func (c asked) Dedicate() (rueidis.DedicatedClient, func()) {
	c.now.Add(1)
	defer c.now.Add(-1)
	return c.Client.Dedicate()
}

// With an exhausted pool, rueidis does not return. The attempts do, and leave only a bounded number of goroutines.
func TestNoConnection(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Start(t).Client(t, onePerPool))
	giveBack := exhaust(t, l)
	var c lua.Connections
	var asks atomic.Int32
	l.rdb = asked{l.rdb, &asks}
	for range 2 {
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				got, err := lua.Acquire(newCallContext(), l.rdb, l.replicated(&c, 100*time.Millisecond))
				requireNoConnection(t, got, err)
			})
		}
		wg.Wait()
		require.Positive(t, int64(asks.Load()))
		require.LessOrEqual(t, asks.Load(), 32)
	}

	// A late connection serves a waiter that is still there. After that, no goroutine asks any more.
	late := make(chan lua.AcquireReply, 1)
	go func() { // ended by the connection
		got, _ := lua.Acquire(newCallContext(), l.rdb, l.replicated(&c, time.Second))
		late <- got
	}()
	giveBack()
	require.Equal(t, lua.Acquired, (<-late).Status)
	redistest.Eventually(t, 10*time.Second, func() bool { return asks.Load() == 0 }, "no goroutine asks")
	exhaust(t, l)() // it is in the pool again
}

// requireNoConnection may run on any goroutine.
func requireNoConnection(t *testing.T, got lua.AcquireReply, err error) {
	t.Helper()
	if got != (lua.AcquireReply{}) || err == nil || err.Error() != "acquire script: no connection of the client's blocking pool "+
		"was free within 100ms: raise BlockingPoolSize of rueidis, unless Redis cannot be reached" {
		t.Errorf("%+v, %v", got, err)
	}
}

func noConnectionSendsNothing(t *testing.T, l lab) {
	giveBack := exhaust(t, l)
	var c lua.Connections
	got, err := lua.Acquire(newCallContext(), l.rdb, l.replicated(&c, 100*time.Millisecond))
	require.ErrorIs(t, err, lua.ErrNoConnection)
	requireNoConnection(t, got, err)
	require.Zero(t, l.number("EXISTS", l.name))

	giveBack()
	got, err = lua.Acquire(newCallContext(), l.rdb, l.replicated(&c, time.Second))
	require.NoError(t, err)
	require.Equal(t, lua.Acquired, got.Status)
}

// The client closes while attempts wait for a connection.
func noConnectionOfAClosedClient(t *testing.T, l lab) {
	exhaust(t, l)
	var c lua.Connections
	errs := make(chan error, 1)
	go func() { // ended by Close
		_, err := lua.Acquire(newCallContext(), l.rdb, l.replicated(&c, 5*time.Second))
		errs <- err
	}()
	l.rdb.Close()
	require.Error(t, <-errs)
	_, err := lua.Acquire(newCallContext(), l.rdb, l.replicated(&c, 100*time.Millisecond))
	require.ErrorIs(t, err, rueidis.ErrClosing)
}

func endWithoutConnection(t *testing.T, l lab) {
	exhaust(t, l)
	attempt := newCallContext()
	time.AfterFunc(20*time.Millisecond, func() { close(attempt.done) })
	began := time.Now()
	got, err := lua.Acquire(attempt, l.rdb, l.replicated(&lua.Connections{}, time.Minute))
	require.Less(t, redistest.Ran(t, began, time.Now()), 3*time.Second)
	require.ErrorIs(t, err, lua.ErrNoConnection)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, "acquire script: no connection of the client's blocking pool: context canceled", err.Error())
	require.Zero(t, got)
	require.Zero(t, l.number("EXISTS", l.name))
}

// If ctx ends, so does a WAIT. The caller does not know of the lock then, so the reply counts as lost.
func endDuringWait(t *testing.T, l lab) {
	attempt := newCallContext()
	errs := make(chan error, 1)
	go func() { // ended by end
		reply, err := lua.Acquire(attempt, l.rdb, l.replicated(&lua.Connections{}, time.Minute))
		if reply != (lua.AcquireReply{}) {
			err = fmt.Errorf("%+v, %w", reply, err)
		}
		errs <- err
	}()
	redistest.Eventually(t, 10*time.Second, func() bool { return blocked(t, l) == 1 }, "WAIT is under way")
	began := time.Now()
	close(attempt.done)
	require.Equal(t, "acquire script: context canceled", (<-errs).Error())
	require.Less(t, redistest.Ran(t, began, time.Now()), 3*time.Second)
	require.Equal(t, mine(1), l.fields())

	exhaust(t, l)() // the connection has left the pool
}

// blocked counts the clients that wait in Redis.
func blocked(t *testing.T, l lab) int {
	t.Helper()
	all := 0
	for _, node := range l.rdb.Nodes() {
		info, err := node.Do(t.Context(), node.B().Info().Section("clients").Build()).ToString()
		require.NoError(t, err)
		_, after, _ := strings.Cut(info, "blocked_clients:")
		count, _, _ := strings.Cut(after, "\r\n")
		n, err := strconv.Atoi(count)
		require.NoError(t, err)
		all += n
	}
	return all
}

// The end of ctx also ends an attempt on a silent connection.
func TestEndOfASilentAttempt(t *testing.T) {
	t.Parallel()
	deployments(t, func(t *testing.T, servers []*redistest.Server, dial func(*testing.T) lab) {
		l := dial(t)
		exhaust(t, l)() // the connection is there
		for _, s := range servers {
			s.Pause()
			t.Cleanup(s.Resume)
		}
		attempt := newCallContext()
		time.AfterFunc(100*time.Millisecond, func() { close(attempt.done) })
		began := time.Now()
		got, err := lua.Acquire(attempt, l.rdb, l.replicated(&lua.Connections{}, time.Minute))
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, got)
		require.Less(t, redistest.Ran(t, began, time.Now()), 5*time.Second)
	})
}

// Two masters with a replica each; the client knows which one has which slot, until the slots move.
func TestReplicasFollowRedirections(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 2, 1)
	t.Run("MOVED", func(t *testing.T) { followMoved(t, cluster) })
	t.Run("ASK", func(t *testing.T) { followAsk(t, cluster) })
	t.Run("loop", func(t *testing.T) { followNoLoop(t, cluster) })
}

// onCluster returns a lock, the master that has its slot, and the other one.
func onCluster(t *testing.T, cluster *redistest.Cluster) (l lab, from, to *redistest.Server) {
	t.Helper()
	l = newLab(t, cluster.Client(t))
	from, to = cluster.Owner(t, cluster.Slot(t, l.name)), cluster.Nodes()[0]
	if to == from {
		to = cluster.Nodes()[1]
	}
	for _, s := range []*redistest.Server{from, to} { // neither knows the script
		require.NoError(t, atNode(t, s, "SCRIPT", "FLUSH").Error())
	}
	return l, from, to
}

// atNode sends a command to one node of a cluster.
func atNode(t *testing.T, s *redistest.Server, cmd ...string) rueidis.RedisResult {
	t.Helper()
	c := s.Client(t, redistest.Single)
	return c.Do(t.Context(), c.B().Arbitrary(cmd...).Build())
}

// A slot has moved, and the client does not know it yet.
func followMoved(t *testing.T, cluster *redistest.Cluster) {
	l, from, to := onCluster(t, cluster)
	cluster.MigrateSlot(t, cluster.Slot(t, l.name), from, to)
	var c lua.Connections
	for token := int64(1); token <= 3; token++ {
		got, err := lua.Acquire(newCallContext(), l.rdb, l.replicated(&c, 10*time.Second))
		require.NoError(t, err)
		require.Equal(t, lua.AcquireReply{Status: lua.Acquired, Token: token}, got)
		l.must("DEL", l.name)
	}

	// A client that does not know the other node cannot follow.
	single := from.Client(t, redistest.Single)
	got, err := lua.Acquire(newCallContext(), single, l.replicated(&c, 10*time.Second))
	var said *rueidis.RedisError
	require.ErrorAs(t, err, &said)
	addr, moved := said.IsMoved()
	require.True(t, moved)
	require.Equal(t, to.Addr(), addr)
	require.Zero(t, got)
}

// While a slot moves, keys missing on the old node are at the new node, after ASKING.
func followAsk(t *testing.T, cluster *redistest.Cluster) {
	l, _, _ := onCluster(t, cluster)
	cluster.BeginMove(t, cluster.Slot(t, l.name))
	a := l.replicated(&lua.Connections{}, 10*time.Second)
	a.Fence = "" // Redis answers TRYAGAIN to several keys of such a slot
	for range 3 {
		got, err := lua.Acquire(newCallContext(), l.rdb, a)
		require.NoError(t, err)
		require.Equal(t, lua.AcquireReply{Status: lua.Acquired}, got)
		require.Equal(t, mine(1), l.fields())
		l.must("DEL", l.name)
	}
	a.Owner = other
	_, err := lua.Acquire(newCallContext(), l.rdb, a)
	require.NoError(t, err)
	a.Owner = me
	got, err := lua.Acquire(newCallContext(), l.rdb, a)
	require.NoError(t, err)
	require.Equal(t, other, got.Holder)
}

// A node that redirects to itself causes an error, not a loop.
func followNoLoop(t *testing.T, cluster *redistest.Cluster) {
	l, from, _ := onCluster(t, cluster)
	sent := make(chan struct{}, 1000)
	proxy := redistest.StartProxy(t, from.Addr())
	proxy.OnRequest(func(cmd []string) redistest.Action {
		if cmd[0] != "EVALSHA" {
			return redistest.Pass
		}
		sent <- struct{}{}
		return redistest.Fail("MOVED 1 " + from.Addr())
	})
	rdb := cluster.Client(t, redistest.Via(proxy))
	_, err := lua.Acquire(newCallContext(), rdb, l.replicated(&lua.Connections{}, time.Second))
	require.ErrorContains(t, err, "MOVED")
	require.Len(t, sent, 4)
}
