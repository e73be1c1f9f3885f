package rlock_test

import (
	"context"
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
	redistest.Parallel(t)
	master, replica := redistest.StartPair(t)
	rdb := master.Client(t)
	const wait = 2 * time.Second // the time the test has to see the lock taken
	careful := newClient(t, rdb, rlock.Options{Replicas: 1, ReplicaTimeout: wait})
	replica.Pause()
	first := lockAsync(t, careful.Mutex("next"))
	b := fixture{rdb: rdb}
	redistest.Eventually(t, 5*time.Second, func() bool { return b.exists(t, "next") }, "granted, but not confirmed")
	second := lockAsync(t, newClient(t, rdb).Mutex("next"))
	require.ErrorIs(t, first.get(t, wait+5*time.Second).err, rlock.ErrNotReplicated)
	second.getAndUnlock(t, 5*time.Second)
	replica.Resume()
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
	redistest.Parallel(t)
	s := redistest.Start(t) // without a replica
	b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
	const wait = 5 * time.Second
	c := newClient(t, s.Client(t, func(o *rueidis.ClientOption) {
		o.ConnWriteTimeout, o.Dialer.KeepAlive = wait/4, wait/4
	}), rlock.Options{Replicas: 1, ReplicaTimeout: wait})
	began := time.Now()
	_, _, err := c.Mutex(b.name).Lock(context.Background())
	require.ErrorIs(t, err, rlock.ErrNotReplicated)
	require.ErrorContains(t, err, "0 of 1 replicas within 5s")
	require.GreaterOrEqual(t, time.Since(began), wait)
	require.Less(t, redistest.Ran(t, began, time.Now()), wait+soon)
	redistest.Eventually(t, soon, func() bool { return !b.exists(t, b.name) }, "given back")
}
