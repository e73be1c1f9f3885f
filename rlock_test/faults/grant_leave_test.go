package faults

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// grantPhases are the phases of a grant in which the next process in the queue may give up. Each function takes the
// client to that phase; unlock is the holder's.
var grantPhases = map[string]func(t *testing.T, c *grantClient, unlock func()){
	"in the queue": func(_ *testing.T, _ *grantClient, _ func()) {},
	"message under way": func(t *testing.T, c *grantClient, unlock func()) {
		c.proxy.OnReply(once(isGrant, redistest.Hold))
		unlock()
		redistest.Eventually(t, promptly, func() bool { return c.proxy.Held() > 0 }, "granted")
	},
	"asks": func(t *testing.T, c *grantClient, unlock func()) {
		sleep(grantLease * 5 / 8) // after such a wait, a granted process asks first
		c.proxy.OnRequest(once(mixScript, redistest.Hold))
		unlock()
		redistest.Eventually(t, promptly, func() bool { return c.proxy.Held() > 0 }, "asks")
	},
	"answer under way": func(t *testing.T, c *grantClient, unlock func()) {
		sleep(grantLease * 5 / 8)
		c.proxy.OnReply(once(mixScript, redistest.Hold))
		unlock()
		redistest.Eventually(t, promptly, func() bool { return c.proxy.Held() > 0 }, "answered")
	},
}

// Fault 1, G1, G4, G5: the next process in the queue gives up, or closes its client, in each phase of a grant. The lock
// goes to the next goroutine of the process, if there is one, or to the next process: at once if Redis can be reached,
// and when the grant lease ends at the latest.
func TestGrantedProcessGivesUp(t *testing.T) {
	t.Parallel()
	for phase, prepare := range grantPhases {
		for _, how := range []string{"cancel", "close", "cancel, one more here"} {
			t.Run(phase+"/"+how, func(t *testing.T) {
				t.Parallel()
				s := newGrantScene(t, redistest.Shared(t), 2, rlock.Options{})
				first, second := s.line[0], s.line[1]
				var more waiter
				if how == "cancel, one more here" {
					more = startLock(context.Background(), first.Mutex(s.name))
				}
				unlocked := false
				unlock := func() {
					require.NoError(t, s.held.unlock())
					unlocked = true
				}
				prepare(t, first, unlock)
				var closing <-chan error
				if how == "close" {
					closing = call(func() error { first.Close(); return nil })
					require.ErrorIs(t, first.waiter.within(t, promptly).err, rlock.ErrClosed)
				} else {
					first.cancel()
					require.ErrorIs(t, first.waiter.within(t, promptly).err, context.Canceled)
				}
				if !unlocked {
					unlock()
				}
				if phase == "asks" || phase == "answer under way" {
					sleep(promptly / 10)
					first.proxy.Release()
				}
				within := promptly
				if phase == "message under way" {
					within = grantLease + promptly // the process may not know of the grant, to give it back
				}
				if more == nil {
					got := s.gets(t, second, within, "the next process must get the lock")
					first.proxy.Release()
					s.alone(t, got)
					if closing != nil {
						require.NoError(t, returned(t, closing, 2*promptly))
					}
					require.NoError(t, got.unlock())
					return
				}
				for range 2 { // in any order
					var got granted
					select {
					case got = <-second.waiter:
					case got = <-more:
					case <-time.After(2*within + promptly):
						require.FailNow(t, "nobody got the lock")
					}
					first.proxy.Release()
					require.NoError(t, got.err)
					s.alone(t, got)
					require.NoError(t, got.unlock())
				}
			})
		}
	}
}

// Fault 1, 2, G1, G4, G5: a process gives up while its commands cannot reach Redis, so it keeps its place and is granted
// the lock. The next process gets in when the grant lease ends. Once the network is back, nothing is left.
func TestGrantToAProcessThatCannotLeave(t *testing.T) {
	t.Parallel()
	s := newGrantScene(t, redistest.Shared(t), 2, rlock.Options{})
	first, second := s.line[0], s.line[1]
	var over atomic.Bool
	hold := every(mixScript, redistest.Hold)
	first.proxy.OnRequest(func(cmd []string) redistest.Action {
		if over.Load() {
			return redistest.Pass
		}
		return hold(cmd)
	})
	first.cancel()
	require.ErrorIs(t, first.waiter.within(t, promptly).err, context.Canceled)
	got := s.passes(t, s.held, second, grantLease+promptly)
	over.Store(true)
	first.proxy.Release()
	s.alone(t, got)
	require.NoError(t, got.unlock())
}

// Fault 1, G1, G4, G6: a release that grants the lock to another process is lost or late, or its reply is. The unlock
// returns nil, once. The other process is the only owner. A goroutine that joined the queue in the same call, in the
// releasing process, gets its turn.
func TestGrantingReleaseLost(t *testing.T) {
	t.Parallel()
	for leg, on := range map[string]func(*redistest.Proxy, redistest.Hook){
		"request": (*redistest.Proxy).OnRequest, "reply": (*redistest.Proxy).OnReply,
	} {
		for _, act := range []redistest.Action{redistest.Cut, redistest.Hold} {
			for _, more := range []bool{false, true} {
				t.Run(leg+"/"+string(act)+map[bool]string{false: "", true: "/one more here"}[more], func(t *testing.T) {
					t.Parallel()
					s := newGrantScene(t, redistest.Shared(t), 0, rlock.Options{HandOff: rlock.HandOff{For: 1}})
					held := s.held
					var local waiter
					if more { // with this hold, the process's run of hand-offs in memory ends
						next := startLock(context.Background(), s.holder.Mutex(s.name))
						awaitSubscribers(t, s.rdb, s.name, false, 1, promptly)
						require.NoError(t, held.unlock())
						held = next.gets(t, promptly, "handed off")
						local = startLock(context.Background(), s.holder.Mutex(s.name))
					}
					s.join(t, s.client(t, rlock.Options{}))
					on(s.holder.proxy, once(isEnd, act))
					unlocked := call(held.unlock)
					if act == redistest.Hold {
						redistest.Eventually(t, promptly, func() bool { return s.holder.proxy.Held() > 0 }, "struck")
						if leg == "reply" {
							redistest.Eventually(t, promptly, func() bool { // the new owner may be here, and learn it from the reply
								return owners(t, s.rdb, s.name)[rlock.Owner(held.ctx)] == 0
							}, "the release must have run")
						}
						s.holder.proxy.Release()
					}
					require.NoError(t, returned(t, unlocked, promptly))
					require.ErrorIs(t, held.unlock(), rlock.ErrNotHeld)
					for n := 0; n < 1+map[bool]int{true: 1}[more]; n++ {
						var got granted
						select {
						case got = <-s.line[0].waiter:
						case got = <-local:
						case <-time.After(grantLease + promptly):
							require.FailNow(t, "nobody got the lock")
						}
						require.NoError(t, got.err)
						s.alone(t, got)
						require.NoError(t, got.unlock())
					}
				})
			}
		}
	}
}

// Fault 3 (ForceUnlock), G1, G2, G4: the lock is forced open while many processes wait. One gets it at once, and the
// others get their turns. The holder's ctx is cancelled.
func TestForceUnlockWhileManyWait(t *testing.T) {
	t.Parallel()
	s := newGrantScene(t, redistest.Shared(t), 6, rlock.Options{WatchdogTimeout: 3 * promptly})
	held, err := s.holder.Mutex(s.name).ForceUnlock(context.Background())
	require.NoError(t, err)
	require.True(t, held)
	forced := time.Now()
	s.takeTurns(t, promptly)
	told := cancellationOf(s.held.ctx)
	told.by(t, forced.Add(promptly), promptly) // a third of the watchdog time
	require.ErrorIs(t, s.held.unlock(), rlock.ErrLost)
}

// takeTurns requires that all clients in the line get the lock in turn, each within the given time after the previous.
func (s *grantScene) takeTurns(t *testing.T, within time.Duration) {
	t.Helper()
	had := make([]bool, len(s.line))
	for range s.line {
		redistest.Eventually(t, within, func() bool {
			for i, c := range s.line {
				if !had[i] && len(c.waiter) > 0 {
					had[i] = true
					s.turn(t, <-c.waiter)
					return true
				}
			}
			return false
		}, "the next client must get the lock")
	}
}

// turn requires that got is the only hold, and unlocks it.
func (s *grantScene) turn(t *testing.T, got granted) {
	t.Helper()
	require.NoError(t, got.err)
	s.alone(t, got)
	for _, c := range s.line {
		require.Empty(t, c.waiter, "no other Lock may return")
	}
	require.NoError(t, got.unlock())
}

// Fault 3 (kill -9 and restart empty), G2, G4, G5: Redis forgets the lock and the queue while many processes wait. Each
// process asks once it has subscribed again, and all get their turns.
func TestRedisKilledAndEmptyWhileManyWait(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := newGrantScene(t, server.Addr(), 8, rlock.Options{WatchdogTimeout: 3 * promptly})
	server.Kill()
	server.Restart()
	redistest.Eventually(t, promptly, func() bool { return do(t, s.rdb, "PING").Error() == nil }, "connected again")
	s.takeTurns(t, 2*promptly) // a second between attempts to connect
	ended(t, s.held.ctx, promptly+2*promptly)
	require.ErrorIs(t, s.held.unlock(), rlock.ErrLost)
}
