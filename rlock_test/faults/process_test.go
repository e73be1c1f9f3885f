//go:build unix

package faults

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// peerWatchdog is the watchdog time of a process that is stopped or killed. A busy machine may let it wait for seconds before.
const peerWatchdog = 8 * time.Second

// Fault 5, G2 and G8: a holder's process stands still past its lease. Somebody else gets the lock
// when the lease ends; when the process goes on it is told at once, and its unlock is refused, also
// if that is the first thing it does. The new holder is not touched.
func TestProcessStoppedPastItsLease(t *testing.T) {
	t.Parallel()
	for _, lease := range []string{"", peerWatchdog.String()} {
		for _, unlockFirst := range []bool{false, true} {
			t.Run(fmt.Sprintf("lease=%s,unlock first=%v", lease, unlockFirst), func(t *testing.T) {
				t.Parallel()
				rdb := redistest.Dial(t, redistest.Shared(t))
				name := redistest.Name(t)
				p := startPeer(t, redistest.Shared(t), peerWatchdog)
				p.send(t, "lock", name, lease)
				p.expect(t, "locked", patience)
				w := startLock(context.Background(), newClient(t, rdb, rlock.Options{}).Mutex(name))
				awaitSubscribers(t, rdb, name, false, 1, patience)

				require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
				got := w.gets(t, peerWatchdog+patience, "the lease of the stopped process has ended")
				p.silent(t)
				if unlockFirst {
					p.send(t, "unlock")
				}
				require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
				if !unlockFirst {
					require.Contains(t, p.expect(t, "ended", patience), rlock.ErrLost.Error(), "told at once")
					p.send(t, "unlock")
				}
				refused := p.find(t, "refused", patience)
				require.Contains(t, refused, rlock.ErrLost.Error())
				require.Contains(t, refused, rlock.ErrNotHeld.Error())

				require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, owners(t, rdb, name))
				require.NoError(t, got.ctx.Err())
				require.NoError(t, got.unlock())
			})
		}
	}
}

// Fault 5, G6: a process is stopped in its unlock for longer than Options.UnlockTimeout. What Redis has answered meanwhile counts.
func TestProcessStoppedInItsUnlock(t *testing.T) {
	t.Parallel()
	for range 8 { // in what order a process that goes on notices things is up to its scheduler
		t.Run("", func(t *testing.T) {
			t.Parallel()
			name := redistest.Name(t)
			proxy := redistest.StartProxy(t, redistest.Shared(t))
			p := startPeer(t, proxy.Addr(), time.Minute)
			p.send(t, "lock", name)
			p.expect(t, "locked", patience)
			proxy.OnReply(once(mixScript, redistest.Hold))
			p.send(t, "unlock")
			redistest.Eventually(t, patience, func() bool { return proxy.Held() > 0 }, "released")
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
			proxy.Release()
			sleep(4 * time.Second)
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
			p.find(t, "unlocked", patience)
		})
	}
}

// Fault 5, G3: a holder's process is killed. The next one is in when the lease ends, not before and
// not much later.
func TestProcessKilledWhileHolding(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	name := redistest.Name(t)
	p := startPeer(t, redistest.Shared(t), peerWatchdog)
	p.send(t, "lock", name)
	owner := p.expect(t, "locked", patience)
	w := startLock(context.Background(), newClient(t, rdb, rlock.Options{}).Mutex(name))
	awaitSubscribers(t, rdb, name, false, 1, patience)
	p.kill()
	asked := time.Now()
	left := remaining(t, rdb, name)
	require.Contains(t, owners(t, rdb, name), owner)
	got := w.gets(t, left+patience, "the lease of the killed process has ended")
	require.GreaterOrEqual(t, got.at.Sub(asked), left, "not before its end")
	require.NoError(t, got.unlock())
}

// Fault 5, G3 and G4: the process of a holder of permits is killed. They are back when their lease ends, which is within the watchdog time, not before and
// not much later. Whoever waits for all permits has them then, with all their numbers.
func TestProcessKilledWithPermits(t *testing.T) {
	t.Parallel()
	const all = 3
	// Whoever sleeps through the end of a lease asks after a minute.
	const watchdog = peerWatchdog
	for _, lease := range []string{"", (watchdog * 3 / 4).String()} {
		t.Run("lease="+lease, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Dial(t, redistest.Shared(t))
			name := redistest.Name(t)
			s := newClient(t, rdb, rlock.Options{}).PermitSemaphore(name)
			require.NoError(t, s.SetPermits(context.Background(), all))
			p := startPeer(t, redistest.Shared(t), watchdog)
			p.send(t, "permits", name, "2", lease)
			ids := strings.Fields(p.expect(t, "permits", patience))
			require.Len(t, ids, 2)
			left := func(id string) time.Duration {
				d, err := s.LeaseTime(context.Background(), id)
				require.NoError(t, err)
				return d
			}
			var slots []int
			w := startWaiter(func() (g granted) {
				ctx, permit, err := s.AcquireN(context.Background(), all)
				slots = permit.Slots()
				return granted{ctx: ctx, unlock: permit.Release, err: err}
			})
			redistest.Eventually(t, patience, func() bool { return exists(t, rdb, "rlock_sem_queue:{"+name+"}") }, "it waits")
			if lease == "" {
				last := left(ids[0])
				redistest.Eventually(t, patience, func() bool {
					before := last
					last = left(ids[0])
					return last > before
				}, "they are renewed")
			}
			p.kill()
			asked := time.Now()
			longest := max(left(ids[0]), left(ids[1]))
			require.LessOrEqual(t, longest, watchdog)
			got := w.gets(t, longest+patience, "the leases of the killed process have ended")
			require.GreaterOrEqual(t, got.at.Sub(asked), longest, "not before their end")
			require.ElementsMatch(t, []int{0, 1, 2}, slots)
			require.NoError(t, got.unlock())
			n, err := s.Available(context.Background())
			require.NoError(t, err)
			require.EqualValues(t, all, n)
			for _, key := range []string{leasedKey(name), "rlock_sem_slots:{" + name + "}"} {
				require.False(t, exists(t, rdb, key), key)
			}
		})
	}
}

// Fault 5, G1, G2, G4: a process is stopped from before it is granted the lock until the grant lease has ended. The others go on when that
// lease ends. The continued process does not enter: it asks, and gets the lock in its turn.
func TestGrantedProcessStopped(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	name := redistest.Name(t)
	_, unlock, err := newClient(t, rdb, rlock.Options{}).Mutex(name).Lock(context.Background())
	require.NoError(t, err)
	p := startPeer(t, redistest.Shared(t), rlock.DefaultWatchdogTimeout)
	p.send(t, "lock", name)
	awaitQueued(t, rdb, name, 1)
	next := startLock(context.Background(), newClient(t, rdb, rlock.Options{}).Mutex(name))
	awaitQueued(t, rdb, name, 2)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	redistest.Eventually(t, patience, func() bool { // just after the signal it might still receive a grant
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED|syscall.WNOHANG, nil)
		return err == nil && pid == p.cmd.Process.Pid && status.Stopped()
	}, "stopped")
	require.NoError(t, unlock())
	got := next.gets(t, patience, "looks when the grant lease ends")
	p.silent(t)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
	awaitQueued(t, rdb, name, 1)
	p.silent(t)
	require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, owners(t, rdb, name))
	require.NoError(t, got.ctx.Err())
	require.NoError(t, got.unlock())
	p.expect(t, "locked", patience)
	p.send(t, "unlock")
	p.find(t, "unlocked", patience)
}
