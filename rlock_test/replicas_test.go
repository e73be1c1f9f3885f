package rlock_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

func TestReplicas(t *testing.T) {
	redistest.Parallel(t)
	master, replica := redistest.StartPair(t)
	rdb := master.Client(t)
	b := fixture{rdb: rdb, name: "replicated"}
	b.Client = newClient(t, rdb, rlock.Options{Replicas: 1, ReplicaTimeout: 20 * time.Second})
	m := b.Mutex(b.name)

	ctx, unlock := enter(t, context.Background(), m)
	require.True(t, fixture{rdb: replica.Client(t)}.exists(t, b.name), "the replica has it when Lock returns")
	_, unlockInner := enter(t, ctx, m)
	require.NoError(t, unlockInner())
	require.NoError(t, unlock())

	replica.Pause()
	hasty := newClient(t, rdb, rlock.Options{Replicas: 1, ReplicaTimeout: 200 * time.Millisecond}).Mutex(b.name)
	for range 2 { // the second round reuses a connection
		_, noop, err := hasty.Lock(context.Background())
		require.ErrorIs(t, err, rlock.ErrNotReplicated)
		require.ErrorContains(t, err, "0 of 1 replicas within 200ms")
		require.ErrorIs(t, noop(), rlock.ErrNotHeld)
		require.False(t, b.exists(t, b.name), "given back")
	}
	replica.Resume()
	redistest.Eventually(t, 10*time.Second, func() bool {
		return m.Do(context.Background(), func(context.Context) error { return nil }) == nil
	}, "confirmed again")

	b.do(t, "SCRIPT", "FLUSH")
	require.NoError(t, m.Do(context.Background(), func(context.Context) error { return nil }))
}

// When too few replicas confirm a grant, the lock is given back and the next waiter wakes.
func TestNotReplicatedWakesTheNext(t *testing.T) {
	redistest.OnlyVirtual(t, "the server confirms the rest by itself", func(t *testing.T) {
		c, proxy, b := behindProxy(t, anyWay, rlock.Options{Replicas: 1})
		proxy.OnReply(redistest.Nth(1, "WAIT", redistest.Hold))
		first := lockAsync(t, c.Mutex(b.name))
		redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() > 0 }, "granted, but not confirmed")
		second := lockAsync(t, newClient(t, b.rdb).Mutex(b.name))
		b.awaitWaiters(t, 1)
		refused := first.get(t, testTimeout)
		require.ErrorIs(t, refused.err, rlock.ErrNotReplicated)
		got := second.gets(t, testTimeout)
		requireTook(t, 0, refused.at, got.at)
		require.NoError(t, got.unlock())
	})
}

func TestWaitRefused(t *testing.T) {
	s := redistest.Start(t)
	admin := fixture{rdb: s.Client(t)}
	require.NoError(t, admin.do(t, "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-wait").Error())
	rdb := s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "app", "secret" })
	c := newClient(t, rdb, rlock.Options{Replicas: 1})
	_, _, err := c.Mutex("wait").Lock(context.Background())
	require.ErrorIs(t, err, rlock.ErrNotReplicated)
	require.ErrorContains(t, err, "'wait' command")
	require.False(t, admin.exists(t, "wait"))

	for _, o := range []rlock.Options{{Replicas: -1}, {Replicas: 1, ReplicaTimeout: -1}, {ReplicaTimeout: 1}} {
		_, err := rlock.New(rdb, o)
		require.ErrorContains(t, err, "Options.Replica")
	}
}

// A refusal does not wait for replicas: it comes at once, even though the replica has not confirmed earlier writes.
func TestHeldIsNotReplicated(t *testing.T) {
	redistest.Parallel(t)
	master, replica := redistest.StartPair(t)
	rdb := master.Client(t)
	careful := newClient(t, rdb, rlock.Options{Replicas: 1, ReplicaTimeout: 20 * time.Second})
	require.NoError(t, careful.Mutex("free").Do(context.Background(), func(context.Context) error { return nil }))
	_, unlock := enter(t, context.Background(), newClient(t, rdb).Mutex("held"))
	replica.Pause()
	defer replica.Resume()
	// This acquire waits for the replica, so it leaves an unconfirmed write on the connection that the next call gets.
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	requireLockFails(t, ctx, careful.Mutex("free"), rlock.ErrNotAcquired)
	began := time.Now()
	refusalOf(t, careful.Mutex("held"), 0)
	require.Less(t, redistest.Ran(t, began, time.Now()), 10*time.Second)
	require.NoError(t, unlock())
}

// ReplicaTimeout may exceed the time that this library or rueidis otherwise allows a command.
func TestLongReplicaTimeout(t *testing.T) {
	redistest.OnlyVirtual(t, "WAIT is answered at its last moment", func(t *testing.T) {
		const wait = 5 * time.Second
		s := redistest.Start(t)
		proxy := redistest.StartProxy(t, s.Addr())
		b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
		c := newClient(t, redistest.Dial(t, proxy.Addr(), func(o *rueidis.ClientOption) {
			o.ConnWriteTimeout, o.Dialer.KeepAlive = wait/4, wait/4
		}), rlock.Options{Replicas: 1, ReplicaTimeout: wait})
		loadScripts(t, c)
		proxy.OnReply(redistest.Nth(1, "WAIT", redistest.Hold))
		began := time.Now()
		p := lockAsync(t, c.Mutex(b.name))
		redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() > 0 }, "the lock is granted, and not confirmed")
		sleep(wait)
		p.stillWaits(t)
		proxy.Release()
		got := p.gets(t, testTimeout)
		requireTook(t, wait, began, got.at)
		require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, b.fields(t, b.name))
		require.NoError(t, got.unlock())
	})
}

// I3, G5: a share of a Quorum that too few replicas have counts as missing. It is asked for again, and released once, at the end: a release in
// between may arrive late, and end the share that was confirmed meanwhile. Without a majority that is confirmed, nothing is left.
func TestQuorumWithReplicas(t *testing.T) {
	redistest.Parallel(t) // without WAIT in memory
	e := &quorumServers{name: redistest.Name(t)}
	var replicas []*redistest.Server
	for range 3 {
		s, replica := redistest.StartPair(t)
		e.servers, replicas = append(e.servers, s), append(replicas, replica)
		e.proxies = append(e.proxies, redistest.StartProxy(t, s.Addr()))
		e.watch = append(e.watch, s.Client(t))
	}
	v := e.process(t, rlock.Options{Replicas: 1, ReplicaTimeout: time.Second})
	v.awaitReplicas(t)
	e.awaitVotes(t, 0)
	var acquires, releases atomic.Int32
	e.proxies[2].OnRequest(func(cmd []string) redistest.Action {
		switch says := strings.Join(cmd, " "); {
		case !strings.HasPrefix(says, "EVAL"):
		case strings.Contains(says, "redisson_lock__channel"):
			releases.Add(1)
		default:
			acquires.Add(1)
		}
		return redistest.Pass
	})
	replicas[2].Pause()
	ctx, unlock := enter(t, t.Context(), v)
	redistest.Eventually(t, time.Minute, func() bool { return acquires.Load() > 1 }, "the share is asked for again")
	require.Zero(t, releases.Load())
	require.NoError(t, ctx.Err())
	require.NoError(t, unlock())
	e.awaitVotes(t, 0)
	require.EqualValues(t, 1, releases.Load())

	replicas[1].Pause()
	_, _, err := v.Lock(t.Context())
	require.ErrorIs(t, err, rlock.ErrNotReplicated)
	e.awaitVotes(t, 0)
	replicas[1].Resume()
	replicas[2].Resume()
}

// awaitReplicas waits until replicas confirm a Lock.
func (v quorumProcess) awaitReplicas(t testing.TB) {
	t.Helper()
	redistest.Eventually(t, time.Minute, func() bool { return v.Do(t.Context(), nothing) == nil }, "the replicas confirm")
}
