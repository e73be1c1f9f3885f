package rlock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

const (
	watchedGrant = 500 * time.Millisecond // the grant lease of these tests, equal to the watchdog time of their Clients
	watchedHold  = 20 * time.Second       // the lease of the hold that all wait for; waiters without a message sleep as long
	watchedSlack = 2 * time.Second        // for a busy machine
)

// deadInLine is a lock with a queue of processes, some of which are killed or stopped.
type deadInLine struct {
	fixture
	unlock       func() error
	well         *redistest.Server
	gone, silent *redistest.Proxy // the connections of killed and of stopped processes
	places       int
}

func newDeadInLine(t *testing.T) *deadInLine {
	t.Helper()
	m := &deadInLine{well: redistest.Start(t)}
	m.rdb, m.name = m.well.Client(t), redistest.Name(t)
	m.Client = newClient(t, m.rdb, watchedOptions)
	m.gone, m.silent = redistest.StartProxy(t, m.well.Addr()), redistest.StartProxy(t, m.well.Addr())
	var err error
	_, m.unlock, err = m.Mutex(m.name, rlock.WithLease(watchedHold)).Lock(context.Background())
	require.NoError(t, err)
	return m
}

var watchedOptions = rlock.Options{WatchdogTimeout: watchedGrant}

// waits starts another process, connected to addr, that waits behind all others.
func (m *deadInLine) waits(t *testing.T, addr string) pendingLock {
	t.Helper()
	p := lockAsync(t, newClient(t, redistest.Dial(t, addr), watchedOptions).Mutex(m.name))
	m.places++
	redistest.Eventually(t, testTimeout, func() bool {
		n, err := m.do(t, "ZCARD", "rlock_queue:{"+m.name+"}").AsInt64()
		return err == nil && n == int64(m.places)
	}, "the process is in the queue")
	return p
}

// cutOff kills the processes behind gone and stops those behind silent, once they have no call under way.
func (m *deadInLine) cutOff() {
	sleep(100 * time.Millisecond)
	m.gone.Refuse(true)
	m.gone.CutAll()
	m.silent.BlackHole(true)
	sleep(100 * time.Millisecond)
}

// requireWithin checks that a waiter gets the lock within that many grant leases.
func requireWithin(t *testing.T, p pendingLock, began time.Time, grants int) {
	t.Helper()
	got := p.get(t, watchedHold)
	require.NoError(t, got.err)
	require.Less(t, time.Since(began), time.Duration(grants)*watchedGrant+watchedSlack)
	require.NoError(t, got.unlock())
}

// Killed processes in the queue do not delay the waiters behind them. Each stopped process delays them by one grant lease at most,
// wherever it stands.
func TestDeadInLine(t *testing.T) {
	for _, dead := range []int{0, 1, 2, 8} {
		redistest.RunVirtual(t, fmt.Sprint(dead, " killed, and one stopped"), func(t *testing.T) {
			m := newDeadInLine(t)
			for range dead {
				m.waits(t, m.gone.Addr())
			}
			m.waits(t, m.silent.Addr())
			w := m.waits(t, m.well.Addr())
			m.cutOff()
			began := time.Now()
			require.NoError(t, m.unlock())
			requireWithin(t, w, began, 1)
		})
	}
	for _, stopped := range []int{2, 4, 9} {
		redistest.RunVirtual(t, fmt.Sprint(stopped, " stopped"), func(t *testing.T) {
			m := newDeadInLine(t)
			for range stopped {
				m.waits(t, m.silent.Addr())
			}
			w := m.waits(t, m.well.Addr())
			m.cutOff()
			began := time.Now()
			require.NoError(t, m.unlock())
			requireWithin(t, w, began, stopped)
		})
	}
}

// Each hand-over chooses anew which waiters check on the new holder: live waiters that already had their turn do not use up this
// number.
func TestDeadBehindTheWell(t *testing.T) {
	for _, well := range []int{1, 4, 12} {
		redistest.RunVirtual(t, fmt.Sprint(well), func(t *testing.T) {
			m := newDeadInLine(t)
			var before []pendingLock
			for range well {
				before = append(before, m.waits(t, m.well.Addr()))
			}
			m.waits(t, m.silent.Addr())
			w := m.waits(t, m.well.Addr())
			m.cutOff()
			began := time.Now()
			require.NoError(t, m.unlock())
			for _, p := range before {
				p.getAndUnlock(t, testTimeout)
			}
			requireWithin(t, w, began, 1)
		})
	}
}

// Processes that are stopped just before they check on the holder delay live waiters by one grant lease each at most.
func TestStoppedBeforeTheirLook(t *testing.T) {
	for _, stopped := range []int{1, 4, 5} {
		redistest.RunVirtual(t, fmt.Sprint(stopped), func(t *testing.T) {
			m := newDeadInLine(t)
			require.NoError(t, m.unlock())
			for range stopped { // loads all scripts that the processes need
				c := newClient(t, redistest.Dial(t, m.silent.Addr()), watchedOptions)
				loadScripts(t, c)
			}
			options := rlock.Options{WatchdogTimeout: 3 * time.Second} // a grant lease of 2 s
			holder := newClient(t, m.rdb, options)
			_, unlock, err := holder.Mutex(m.name, rlock.WithLease(watchedHold)).Lock(context.Background())
			require.NoError(t, err)
			queue := "rlock_queue:{" + m.name + "}"
			for i := range stopped {
				lockAsync(t, newClient(t, redistest.Dial(t, m.silent.Addr()), options).Mutex(m.name))
				redistest.Eventually(t, testTimeout, func() bool {
					n, err := m.do(t, "ZCARD", queue).AsInt64()
					return err == nil && n == int64(i+1)
				}, "the process is in the queue")
			}
			m.silent.BlackHole(true)
			places, err := m.do(t, "ZRANGE", queue, "0", "-1").AsStrSlice()
			require.NoError(t, err)
			for _, place := range places { // as if the hold had seemed to end within a grant lease when they joined, see acquire.lua
				require.NoError(t, m.do(t, "ZINCRBY", queue, "1", place).Error())
			}
			m.places = stopped
			w := m.waits(t, m.well.Addr())
			began := time.Now()
			require.NoError(t, unlock())
			got := w.get(t, testTimeout)
			require.NoError(t, got.err)
			require.Less(t, time.Since(began), time.Duration(stopped)*2*time.Second+watchedSlack)
			require.NoError(t, got.unlock())
		})
	}
}

// A waiter outside the queue is notified of each unlock, whichever processes are in the queue, dead or alive.
func TestOutsiderBesideTheDead(t *testing.T) {
	for _, dead := range []int{0, 1, 4} {
		redistest.RunVirtual(t, fmt.Sprint(dead), func(t *testing.T) {
			m := newDeadInLine(t)
			m.waits(t, m.silent.Addr())
			for range dead {
				m.waits(t, m.gone.Addr())
			}
			outside := newClient(t, m.rdb, rlock.Options{HandOff: rlock.HandOff{Most: -1}})
			w := lockAsync(t, outside.Mutex(m.name))
			m.awaitSubscribers(t, m.name, dead+2)
			m.cutOff()
			began := time.Now()
			require.NoError(t, m.unlock())
			requireWithin(t, w, began, 0)
		})
	}
}
