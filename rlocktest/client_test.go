package rlocktest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

func TestHoldElsewhere(t *testing.T) {
	eachKind(t, func(t *testing.T, lock func(*rlock.Client, string) rlock.Locker) {
		locks := New(t)
		l := lock(locks.Client, "x")
		release := locks.HoldElsewhere("x")
		_, _, err := l.TryLock(t.Context(), 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.NotContains(t, err.Error(), "held by this client")
		got := make(chan error, 1)
		go func() { // ends itself
			_, unlock, err := l.Lock(t.Context())
			got <- errors.Join(err, unlock())
		}()
		time.Sleep(time.Minute)
		require.Empty(t, got, "it waits as long as the other process has the lock")
		release()
		release()
		require.NoError(t, <-got)
		release = locks.HoldElsewhere("x")
		locks.Lose("x")
		release()
		locks.HoldElsewhere("x") // until the test ends
	})
}

// HoldElsewhere of a held lock is a mistake in the test.
func TestHoldElsewhereRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{TB: t}
		locks := New(r)
		_, unlock, err := locks.Mutex("x").Lock(t.Context())
		require.NoError(t, err)
		locks.HoldElsewhere("x")()
		require.NoError(t, unlock())
		said := r.end()
		require.Len(t, said, 1)
		require.Contains(t, said[0], `rlocktest: HoldElsewhere: rlock: "x": not acquired: held by `)
	})
}

func TestAssertHeld(t *testing.T) {
	eachKind(t, func(t *testing.T, lock func(*rlock.Client, string) rlock.Locker) {
		r := &recorder{TB: t}
		locks := New(r)
		ctx, unlock, err := lock(locks.Client, "x").Lock(t.Context())
		require.NoError(t, err)
		inner, unlockInner, err := locks.Mutex("inner").Lock(ctx)
		require.NoError(t, err)
		restore := locks.FailRedis()
		locks.AssertHeld(inner, "x")
		restore()
		locks.AssertHeld(inner, "x")
		done, cancel := context.WithCancel(inner)
		cancel()
		locks.AssertHeld(done, "x")
		require.Empty(t, r.said)

		locks.AssertHeld(t.Context(), "x")
		require.Len(t, r.said, 1)
		require.Contains(t, r.said[0], `rlocktest: the ctx carries no hold of "x": the lock is held by `)
		locks.AssertHeld(rlock.Detach(inner), "x")
		locks.AssertHeld(inner, "y")
		require.Len(t, r.said, 3)
		require.Equal(t, `rlocktest: the ctx carries no hold of "y": the lock is free`, r.said[2])
		require.NoError(t, unlockInner())
		locks.Lose("x")
		locks.AssertHeld(inner, "x") //rlockvet:ignore it has to fail
		require.Equal(t, `rlocktest: the ctx carries no hold of "x": the lock is free`, r.said[3])
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		require.Len(t, r.end(), 4)
	})
}

func TestReplicasConfirm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := NewWith(t, rlock.Options{Replicas: 2})
		require.NoError(t, locks.Mutex("x").Do(t.Context(), func(context.Context) error { return nil }))
	})
}

// Code with its own Client, or subscriptions, can use the Redis as usual.
func TestRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := New(t)
		rdb := locks.Redis()
		require.Equal(t, rueidis.ClientModeStandalone, rdb.Mode())
		own, err := rlock.New(rdb, rlock.Options{})
		require.NoError(t, err)
		defer own.Close()
		require.NoError(t, own.Mutex("x").Do(t.Context(), func(ctx context.Context) error {
			_, _, err := locks.Mutex("x").TryLock(ctx, 0)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			return nil
		}))

		ctx, cancel := context.WithCancel(t.Context())
		heard := make(chan string, 1)
		ended := make(chan struct{})
		go func() { // ended by cancel
			defer close(ended)
			_ = rdb.Receive(ctx, rdb.B().Subscribe().Channel("news").Build(), func(m rueidis.PubSubMessage) { heard <- m.Message })
		}()
		synctest.Wait()
		require.NoError(t, rdb.Do(ctx, rdb.B().Publish().Channel("news").Message("hello").Build()).Error())
		require.Equal(t, "hello", <-heard)
		cancel()
		<-ended
	})
}

// The end of the test copes with a Client that the code under test has closed.
func TestClosedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := New(t)
		_, unlock, err := locks.Mutex("x").Lock(t.Context())
		require.NoError(t, err)
		locks.Close()
		require.NoError(t, unlock())
		locks.Redis().Close()
	})
}

// Several servers form a quorum, which survives the loss of one.
func TestQuorumOfServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var servers [3]*Client
		var members []rlock.Locker
		for i := range servers {
			servers[i] = New(t)
			members = append(members, servers[i].Mutex("x"))
		}
		servers[1].FailRedis()
		require.NoError(t, rlock.Quorum(members...).Do(t.Context(), func(ctx context.Context) error {
			time.Sleep(time.Minute)
			return ctx.Err()
		}))
	})
}

// Large writes before any read do not block: rueidis does that if ctx cannot be cancelled.
func TestManyCommandsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb := New(t).Redis()
		var all rueidis.Commands
		for i := range 1_000 {
			all = append(all, rdb.B().Echo().Message(fmt.Sprintf("%0100d", i)).Build())
		}
		for _, result := range rdb.DoMulti(context.Background(), all...) {
			require.NoError(t, result.Error())
		}
	})
}

func TestNewRefusesOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fatal{recorder: recorder{TB: t}}
		require.PanicsWithValue(t, f, func() { NewWith(f, rlock.Options{WatchdogTimeout: 1}) })
		require.Len(t, f.end(), 1)
		require.Contains(t, f.said[0], "rlocktest: rlock: Options.WatchdogTimeout is 1ns")
	})
}
