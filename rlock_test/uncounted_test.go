package rlock_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// One holder lives at a time, nobody loses a hold, and nobody sleeps until a lease ends, whichever of the waiting processes the
// server counts.
func TestOneOwnerWhereListenersAreNotCounted(t *testing.T) {
	redistest.Parallel(t)
	master, replica := redistest.StartPair(t)
	type kind func(c *rlock.Client, name string) rlock.Locker
	for name, of := range map[string]kind{
		"plain":       func(c *rlock.Client, n string) rlock.Locker { return c.Mutex(n) },
		"short lease": func(c *rlock.Client, n string) rlock.Locker { return c.Mutex(n, rlock.WithLease(20*time.Second)) },
		"kept":        func(c *rlock.Client, n string) rlock.Locker { return c.Mutex(n, rlock.WithLinger(time.Second)) },
		"fenced":      func(c *rlock.Client, n string) rlock.Locker { return c.FencedMutex(n) },
		"fair":        func(c *rlock.Client, n string) rlock.Locker { return c.FairMutex(n) },
		"write":       func(c *rlock.Client, n string) rlock.Locker { return c.RWMutex(n).Write() },
		"upgradeable": func(c *rlock.Client, n string) rlock.Locker { return c.RWMutex(n).Upgradeable() },
		"all": func(c *rlock.Client, n string) rlock.Locker {
			return rlock.All(c.Mutex(n), c.Mutex(n+"'"))
		},
	} {
		for uncounted, isElsewhere := range map[string]func(process int) bool{
			"everybody": func(int) bool { return true },
			"some":      func(process int) bool { return process%2 == 0 },
		} {
			t.Run(name+"/"+uncounted, func(t *testing.T) {
				redistest.Parallel(t)
				const processes, sections, watchdog = 5, 6, 10 * time.Minute
				ctx, cancel := context.WithTimeout(context.Background(), watchdog/2)
				defer cancel()
				b := fixture{rdb: master.Client(t), name: "job" + strconv.Itoa(len(name+uncounted)) + name}
				var inside atomic.Int32
				var running sync.WaitGroup
				for process := range processes {
					rdb := master.Client(t)
					if isElsewhere(process) {
						rdb = redistest.Split{Client: rdb, Messages: replica.Client(t)}
					}
					m := of(newClient(t, rdb, rlock.Options{WatchdogTimeout: watchdog}), b.name)
					running.Go(func() {
						for range sections {
							section, unlock, err := m.Lock(ctx)
							if !assert.NoError(t, err) {
								return
							}
							assert.EqualValues(t, 1, inside.Add(1), "live holders")
							timer := time.NewTimer(20 * time.Millisecond)
							select {
							case <-timer.C:
							case <-section.Done():
								assert.NoError(t, context.Cause(section))
							}
							inside.Add(-1)
							assert.NoError(t, unlock())
						}
					})
				}
				running.Wait()
				redistest.Eventually(t, 10*time.Second, func() bool { return !b.exists(t, b.name) }, "kept locks are given back")
			})
		}
	}
}

// A killed process that the server counted costs nothing; one that it did not count costs a grant lease, once.
func TestDeadWhereListenersAreNotCounted(t *testing.T) {
	redistest.Parallel(t)
	master, replica := redistest.StartPair(t)
	b := fixture{rdb: master.Client(t), name: "job"}
	_, unlock, err := newClient(t, b.rdb, rlock.Options{}).Mutex(b.name).Lock(context.Background())
	require.NoError(t, err)
	const dead = "00000000-2222-3333-4444-555555555555:1"
	require.NoError(t, b.do(t, "ZADD", "rlock_queue:{job}", "1.5", dead).Error())

	inside := make(chan func() error)
	m := newClient(t, redistest.Split{Client: master.Client(t), Messages: replica.Client(t)}, rlock.Options{}).Mutex(b.name)
	go func() {
		for range 2 {
			_, unlock, err := m.Lock(context.Background())
			if assert.NoError(t, err) {
				inside <- unlock
			}
		}
	}()
	redistest.Eventually(t, 10*time.Second, func() bool {
		n, err := b.do(t, "ZCARD", "rlock_queue:{job}").AsInt64()
		return err == nil && n == 2
	}, "the other process waits")
	require.NoError(t, unlock())
	select {
	case unlock = <-inside:
	case <-time.After(20 * time.Second): // its timer ends with the lease, 30 s
		t.Fatal("the waiter behind a dead process sleeps")
	}
	n, err := b.do(t, "ZCARD", "rlock_queue:{job}").AsInt64()
	require.NoError(t, err)
	require.Zero(t, n, "the dead one has lost its place")
	require.NoError(t, unlock())
	require.NoError(t, (<-inside)())
}
