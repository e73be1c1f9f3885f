//go:build unix

package faults

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// peer adds a new process to the queue.
func (s *grantScene) peer(t *testing.T) *peer {
	t.Helper()
	p := startPeer(t, s.server, peerWatchdog)
	n := len(queued(t, s.rdb, s.name))
	p.send(t, "lock", s.name)
	awaitQueued(t, s.rdb, s.name, n+1)
	return p
}

// stop stops the process, and returns when it is stopped: just after the signal it might still receive a grant.
func (p *peer) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, p.Process.Signal(syscall.SIGSTOP))
	redistest.Eventually(t, promptly, func() bool {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(p.Process.Pid, &status, syscall.WUNTRACED|syscall.WNOHANG, nil)
		return err == nil && pid == p.Process.Pid && status.Stopped()
	}, "stopped")
}

// Fault 5, G1, G4, G5: waiting processes are killed. A release skips them at once, and a hundred of them take no
// noticeable time.
func TestGrantPassesOverKilledProcesses(t *testing.T) {
	t.Parallel()
	s := newGrantScene(t, redistest.Shared(t), 0, rlock.Options{})
	for range 3 {
		s.peer(t).kill()
	}
	redistest.Eventually(t, promptly, func() bool { return subscribers(t, s.rdb, s.name, false) == 0 }, "killed")
	s.killed(t, 100)
	s.join(t, s.client(t, rlock.Options{}))
	require.Len(t, queued(t, s.rdb, s.name), 104)
	began := time.Now()
	got := s.passes(t, s.held, s.line[0], promptly)
	t.Logf("handed over in %v, past 103 killed processes", got.at.Sub(began))
	require.Less(t, got.at.Sub(began), grantLease/4)
	require.Empty(t, queued(t, s.rdb, s.name))
	require.NoError(t, got.unlock())
}

// Fault 5, G1, G4, G5: a process is killed after it was granted the lock, before it enters or while inside. The others
// get in when the grant lease ends, or the lease of its last renewal.
func TestGrantedProcessKilled(t *testing.T) {
	t.Parallel()
	for _, inside := range []bool{false, true} {
		t.Run(fmt.Sprintf("inside=%v", inside), func(t *testing.T) {
			t.Parallel()
			s := newGrantScene(t, redistest.Shared(t), 0, rlock.Options{})
			p := s.peer(t)
			s.join(t, s.client(t, rlock.Options{}))
			if inside {
				require.NoError(t, s.held.unlock())
				p.expect(t, "locked", promptly)
			} else {
				p.stop(t)
				require.NoError(t, s.held.unlock())
				p.silent(t)
			}
			p.kill()
			within := max(grantLease, remaining(t, s.rdb, s.name)) + promptly
			got := s.gets(t, s.line[0], within, "the lease has ended")
			require.NoError(t, got.unlock())
		})
	}
}

// Fault 5, G1, G2, G4: a process is stopped from before it is granted the lock until the grant lease has ended. The
// others go on when that lease ends, at most a second later on an idle machine. The continued process does not enter:
// it asks, and gets the lock in its turn.
func TestGrantedProcessStopped(t *testing.T) {
	t.Parallel()
	for _, others := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d behind it", others), func(t *testing.T) {
			t.Parallel()
			s := newGrantScene(t, redistest.Shared(t), 0, rlock.Options{})
			p := s.peer(t)
			for range others {
				s.join(t, s.client(t, rlock.Options{}))
			}
			p.stop(t)
			began := time.Now()
			got := s.passes(t, s.held, s.line[0], grantLease+promptly)
			t.Logf("the next process is in after %v", got.at.Sub(began))
			p.silent(t)
			require.NoError(t, p.Process.Signal(syscall.SIGCONT))
			redistest.Eventually(t, promptly+grantLease, func() bool { return len(queued(t, s.rdb, s.name)) == others }, "it is in the queue again")
			p.silent(t)
			s.alone(t, got)
			for _, c := range s.line[1:] {
				got = s.passes(t, got, c, promptly)
			}
			require.NoError(t, got.unlock())
			p.expect(t, "locked", promptly)
			p.send(t, "unlock")
			p.find(t, "unlocked", promptly)
		})
	}
}

// Without the message with the time to look, the next process sleeps on: the scene notices (G4).
func TestGrantedProcessStoppedAndNobodyWatches(t *testing.T) {
	t.Parallel()
	s := newGrantScene(t, redistest.Shared(t), 0, rlock.Options{WatchdogTimeout: 3 * (grantLease + promptly)})
	p := s.peer(t)
	deaf := s.client(t, rlock.Options{})
	deaf.proxy.OnReply(every(isWatch, redistest.Drop))
	s.join(t, deaf)
	p.stop(t)
	require.NoError(t, s.held.unlock())
	sleep(grantLease + promptly)
	deaf.waiter.waits(t)
	require.NoError(t, p.Process.Signal(syscall.SIGCONT))
	p.expect(t, "locked", promptly)
	p.send(t, "unlock")
	p.find(t, "unlocked", promptly)
	got := s.gets(t, deaf, 3*(grantLease+promptly), "found by the timer")
	require.NoError(t, got.unlock())
}

// Fault 5, G1, G4: several processes in a row in the queue are stopped. Each costs one grant lease at most, and the
// process behind them does not sleep until its timer ends.
func TestSeveralStoppedInARow(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			s := newGrantScene(t, redistest.Shared(t), 0, rlock.Options{})
			var stopped []*peer
			for range n {
				stopped = append(stopped, s.peer(t))
			}
			s.join(t, s.client(t, rlock.Options{}))
			for _, p := range stopped {
				p.stop(t)
			}
			began := time.Now()
			got := s.passes(t, s.held, s.line[0], time.Duration(n)*grantLease+promptly)
			t.Logf("%d stopped: in after %v", n, got.at.Sub(began))
			for _, p := range stopped {
				require.NoError(t, p.Process.Signal(syscall.SIGCONT))
			}
			s.alone(t, got)
			require.NoError(t, got.unlock())
			for _, p := range stopped { // in any order; each unlocks once it has the lock
				p.send(t, "unlock")
			}
			for _, p := range stopped {
				p.find(t, "unlocked", time.Duration(n)*grantLease+promptly)
			}
		})
	}
}

// Fault 5, G4: a process is killed just after it has handed the lock over, before or after the reply.
func TestReleaserKilled(t *testing.T) {
	t.Parallel()
	for _, answered := range []bool{false, true} {
		t.Run(fmt.Sprintf("answered=%v", answered), func(t *testing.T) {
			t.Parallel()
			s := newGrantScene(t, redistest.Shared(t), 0, rlock.Options{})
			require.NoError(t, s.held.unlock())
			proxy := redistest.StartProxy(t, s.server)
			p := startPeer(t, proxy.Addr(), peerWatchdog)
			p.send(t, "lock", s.name)
			p.expect(t, "locked", promptly)
			s.join(t, s.client(t, rlock.Options{}))
			if !answered {
				proxy.OnReply(once(isEnd, redistest.Hold))
			}
			p.send(t, "unlock")
			if answered {
				p.find(t, "unlocked", promptly)
			} else {
				redistest.Eventually(t, promptly, func() bool { return proxy.Held() > 0 }, "answered")
			}
			p.kill()
			got := s.gets(t, s.line[0], promptly, "granted")
			sleep(grantLease + grantLease/2)
			s.alone(t, got)
			require.NoError(t, got.unlock())
		})
	}
}

// killed adds the places of n killed processes to the queue: nobody listens for them.
func (s *grantScene) killed(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		owner := fmt.Sprintf("%08x-0000-4000-8000-%012x:1", i, i)
		require.NoError(t, do(t, s.rdb, "ZADD", queueOf(s.name), fmt.Sprint(1000+i), owner).Error())
	}
	require.NoError(t, s.rdb.Do(context.Background(), s.rdb.B().Pexpire().Key(queueOf(s.name)).Milliseconds(60000).Build()).Error())
}
