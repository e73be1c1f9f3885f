package rlock_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// A grant is an unlock that gives the lock to the first process in the queue, with a message to that process alone.

const (
	// grantLease is the lease of a process that was granted the lock, until it renews or asks. If it does neither, the next in the queue
	// looks after this time.
	grantLease    = 2 * time.Second
	grantWatchdog = 30 * time.Second // for which waiters sleep without a message
)

// grants is a lock with a holder, and a queue of processes behind it. Each has a proxy of its own.
type grants struct {
	fixture

	server *redistest.Server
	holder *grantee
	unlock rlock.UnlockFunc
	line   []*grantee
}

type grantee struct {
	*rlock.Client
	pendingLock

	proxy *redistest.Proxy
}

func newGrants(t *testing.T, waiters int, o ...rlock.Options) *grants {
	t.Helper()
	g := &grants{server: redistest.Start(t)}
	g.rdb, g.name = g.server.Client(t), redistest.Name(t)
	g.holder = g.process(t, o...)
	var err error
	_, g.unlock, err = g.holder.Mutex(g.name).Lock(context.Background())
	require.NoError(t, err)
	for range waiters {
		g.joins(t, g.process(t))
	}
	return g
}

func (g *grants) process(t *testing.T, o ...rlock.Options) *grantee {
	t.Helper()
	proxy := redistest.StartProxy(t, g.server.Addr())
	p := &grantee{Client: newClient(t, redistest.Dial(t, proxy.Addr()), o...), proxy: proxy}
	loadScripts(t, p.Client)
	return p
}

// joins puts a process at the end of the queue.
func (g *grants) joins(t *testing.T, p *grantee) {
	t.Helper()
	n := len(g.queue(t))
	p.pendingLock = lockAsync(t, p.Mutex(g.name))
	g.line = append(g.line, p)
	g.queued(t, n+1)
}

func (g *grants) queue(t *testing.T) []string {
	t.Helper()
	all := answer(g.do(t, "ZRANGE", "rlock_queue:{"+g.name+"}", "0", "-1").AsStrSlice()).ok(t)
	return all
}

func (g *grants) queued(t *testing.T, n int) {
	t.Helper()
	redistest.Eventually(t, soon, func() bool { return len(g.queue(t)) == n }, "places in the queue")
}

// gets requires that a waiter gets the lock within a time, as its one owner.
func (g *grants) gets(t *testing.T, p pendingLock, most time.Duration) lockResult {
	t.Helper()
	began := time.Now()
	got := p.gets(t, testTimeout)
	require.NoError(t, got.ctx.Err())
	require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, g.fields(t, g.name))
	requireTookAtMost(t, most, began, got.at)
	return got
}

// rest requires that the lock is handed over at once to each of some waiters, in whichever order, and that nothing is left at the end.
func (g *grants) rest(t *testing.T, from lockResult, line ...pendingLock) {
	t.Helper()
	in := make(chan lockResult, len(line))
	for _, p := range line {
		go func() { in <- <-p.result }() // ends when Lock returns
	}
	for range line {
		require.NoError(t, from.unlock())
		from = g.gets(t, pendingLock{result: in}, 100*time.Millisecond)
	}
	require.NoError(t, from.unlock())
	redistest.Eventually(t, soon, func() bool {
		n, err := g.do(t, "EXISTS", g.name, "rlock_queue:{"+g.name+"}").AsInt64()
		channels, err2 := g.do(t, "PUBSUB", "CHANNELS", "*{"+g.name+"}*").AsStrSlice()
		return err == nil && err2 == nil && n == 0 && len(channels) == 0
	}, "no key, place or channel is left")
}

// isGrant reports whether a message is a grant: owner, lease, how often it was granted, token.
func isGrant(cmd []string) bool {
	return cmd[0] == "MESSAGE" && len(strings.Fields(cmd[2])) == 4
}

// strike does an action with the first frame for which meant is true.
func strike(meant func([]string) bool, action redistest.Action) redistest.Hook {
	var struck atomic.Bool
	return func(cmd []string) redistest.Action {
		if !meant(cmd) || !struck.CompareAndSwap(false, true) {
			return redistest.Pass
		}
		return action
	}
}

// G1, G4: the message of a grant is lost, late, or comes twice. Within the grant lease its process has the lock, which asks if the message may
// be too late; after it, the next one looks, and the process is back in the queue.
func TestGrantMessage(t *testing.T) {
	for name, row := range map[string]struct {
		action redistest.Action
		late   time.Duration // until it is released
		asks   time.Duration // when the process asks by itself; 0: not before the watchdog time
		second bool          // the second process is in first
	}{
		"cut off, with the connection":      {redistest.Cut, 0, 0, false},
		"lost":                              {redistest.Drop, 0, 0, true},
		"late, within the grant":            {redistest.Hold, grantLease * 5 / 8, 0, false},
		"late, after the grant":             {redistest.Hold, grantLease * 5 / 4, 0, true},
		"late, after the process has asked": {redistest.Hold, grantLease * 5 / 8, grantLease / 4, false},
		"long after the process has asked":  {redistest.Hold, grantLease * 5 / 4, grantLease / 4, false},
		"after the grant, while it asks":    {redistest.Hold, grantLease * 5 / 4, grantLease * 9 / 8, true},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			g := newGrants(t, 0, rlock.Options{WatchdogTimeout: grantWatchdog})
			joined := time.Now()
			for range 3 {
				g.joins(t, g.process(t))
			}
			first, second, third := g.line[0], g.line[1], g.line[2]
			if row.asks > 0 {
				sleep(time.Until(joined.Add(grantWatchdog - row.asks)))
			}
			first.proxy.OnReply(strike(isGrant, row.action))
			require.NoError(t, g.unlock())
			if row.late > 0 {
				time.AfterFunc(row.late, first.proxy.Release)
			}
			if !row.second {
				got := g.gets(t, first.pendingLock, max(row.late, time.Second)) // or the time to connect
				sleep(row.late)
				second.stillWaits(t)
				g.rest(t, got, second.pendingLock, third.pendingLock)
				return
			}
			began := time.Now()
			got := g.gets(t, second.pendingLock, grantLease+50*time.Millisecond)
			require.GreaterOrEqual(t, got.at.Sub(began), grantLease)
			sleep(row.late)
			first.stillWaits(t)
			if row.action == redistest.Hold {
				g.queued(t, 2)
				g.rest(t, got, third.pendingLock, first.pendingLock)
				return
			}
			g.queued(t, 1) // it sleeps until its timer ends
			require.NoError(t, got.unlock())
			got = g.gets(t, third.pendingLock, 0)
			third.pendingLock = pendingLock{}
			sleep(time.Until(joined.Add(grantWatchdog + time.Second)))
			g.rest(t, got, first.pendingLock)
		})
	}
	redistest.RunVirtual(t, "twice", func(t *testing.T) {
		g := newGrants(t, 2)
		said := make(chan []string, 10)
		g.line[0].proxy.OnReply(func(cmd []string) redistest.Action {
			if isGrant(cmd) {
				said <- cmd
			}
			return redistest.Pass
		})
		require.NoError(t, g.unlock())
		first, second := g.line[0], g.line[1].pendingLock
		got := g.gets(t, first.pendingLock, 0)
		grant := <-said
		again := func() {
			answer(g.do(t, "PUBLISH", grant[1], grant[2]).AsInt64()).is(t, 1)
			sleep(100 * time.Millisecond)
			g.held(t, got)
		}
		again()
		require.NoError(t, got.unlock())
		got = g.gets(t, second, 0)
		g.joins(t, first)
		again()
		first.stillWaits(t)
		g.rest(t, got, first.pendingLock)
	})
}

func (g *grants) held(t *testing.T, a lockResult) {
	t.Helper()
	require.NoError(t, a.ctx.Err())
	require.Equal(t, map[string]int64{rlock.Owner(a.ctx): 1}, g.fields(t, g.name))
}

// G1, G4, G5, G9: the first process in the queue gives up, or closes its Client, at any moment of a grant. The next goroutine of the process
// gets the lock, or the next process: at once, or when the grant lease ends if the first one can't know of the grant.
func TestGrantedProcessGivesUp(t *testing.T) {
	for phase, row := range map[string]struct {
		hook  func(*redistest.Proxy, redistest.Hook)
		meant func([]string) bool
	}{
		"in the queue":         {nil, nil},
		"message under way":    {(*redistest.Proxy).OnReply, isGrant},
		"asks":                 {(*redistest.Proxy).OnRequest, isScript},
		"answer under way":     {(*redistest.Proxy).OnReply, isScript},
		"can't reach any more": {(*redistest.Proxy).OnRequest, isScript},
	} {
		for _, how := range []string{"cancel", "close", "cancel, one more here"} {
			for _, late := range []time.Duration{grantLease / 4, grantLease * 5 / 4} { // of what is under way
				if phase == "can't reach any more" && how != "cancel" {
					continue
				}
				redistest.RunVirtual(t, phase+"/"+how+"/"+late.String(), func(t *testing.T) {
					g := newGrants(t, 2)
					first, second := g.line[0], g.line[1]
					var rest []pendingLock
					if how == "cancel, one more here" {
						rest = append(rest, lockAsync(t, first.Mutex(g.name)))
						redistest.Eventually(t, soon, func() bool { return first.Stats().Waiting == 2 }, "it waits as well")
					}
					sleep(grantLease * 5 / 8) // after such a wait, a granted process asks first
					if phase == "can't reach any more" {
						first.proxy.OnRequest(func(cmd []string) redistest.Action { return redistest.Each(cmd[0], redistest.Hold)(cmd) })
					} else if row.hook != nil {
						row.hook(first.proxy, strike(row.meant, redistest.Hold))
						require.NoError(t, g.unlock())
						redistest.Eventually(t, soon, func() bool { return first.proxy.Held() > 0 }, "under way")
					}
					closed := async(func() error {
						if how == "close" {
							first.Close()
						} else {
							first.cancel()
						}
						return nil
					})
					require.Error(t, first.get(t, soon).err)
					if row.hook == nil || phase == "can't reach any more" {
						require.NoError(t, g.unlock())
					}
					time.AfterFunc(late, first.proxy.Release)
					in := make(chan lockResult, 2)
					for _, p := range append(rest, second.pendingLock) {
						go func() { in <- <-p.result }() // ends when Lock returns
					}
					for range 1 + len(rest) {
						got := g.gets(t, pendingLock{result: in}, grantLease+late)
						sleep(late)
						g.held(t, got)
						require.NoError(t, got.unlock())
					}
					require.NoError(t, within(t, closed, 2*testTimeout))
					redistest.Eventually(t, 2*grantWatchdog, func() bool { return len(g.queue(t)) == 0 && !g.exists(t, g.name) }, "nothing is left")
				})
			}
		}
	}
}

// G1, G4, G6: a release that grants the lock to another process is lost or late, or its reply is. The unlock returns nil, once, and the other
// process is the only owner. A goroutine of the releasing process, which joined the queue by the same call, gets its turn.
func TestGrantingUnlockLost(t *testing.T) {
	for leg, on := range legs {
		for _, action := range []redistest.Action{redistest.Cut, redistest.Hold} {
			for _, more := range []bool{false, true} {
				redistest.RunVirtual(t, leg+"/"+string(action)+map[bool]string{true: "/one more here"}[more], func(t *testing.T) {
					g := newGrants(t, 0, rlock.Options{HandOff: rlock.HandOff{For: 1}})
					var line []pendingLock
					if more { // with this hold, the process's run of hand-offs in memory ends
						next := lockAsync(t, g.holder.Mutex(g.name))
						g.awaitSubscribers(t, g.name, 1)
						require.NoError(t, g.unlock())
						g.unlock = g.gets(t, next, 0).unlock
						line = append(line, lockAsync(t, g.holder.Mutex(g.name)))
					}
					g.joins(t, g.process(t))
					on(g.holder.proxy, strike(isScript, action))
					unlocked := async(g.unlock)
					if action == redistest.Hold {
						redistest.Eventually(t, soon, func() bool { return g.holder.proxy.Held() > 0 }, "under way")
						time.AfterFunc(time.Second, g.holder.proxy.Release)
					}
					require.NoError(t, within(t, unlocked, soon))
					require.ErrorIs(t, g.unlock(), rlock.ErrNotHeld)
					line = append(line, g.line[0].pendingLock)
					g.rest(t, lockResult{unlock: func() error { return nil }}, line...)
				})
			}
		}
	}
}

// G4: the message with the time to look overtakes the reply to the attempt that joined the queue. The process looks at that time, and not at
// the end of the lease in the reply.
func TestTimeToLookOvertakesTheAnswer(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		g := newGrants(t, 1)
		second := g.process(t)
		second.proxy.OnReply(strike(isScript, redistest.Hold))
		g.joins(t, second) // without the reply so far
		g.line[0].proxy.OnReply(strike(isGrant, redistest.Drop))
		require.NoError(t, g.unlock())
		sleep(100 * time.Millisecond)
		second.proxy.Release()
		got := g.gets(t, second.pendingLock, grantLease)
		g.line[0].cancel()
		require.ErrorIs(t, g.line[0].get(t, soon).err, context.Canceled)
		g.rest(t, got)
	})
}

// G1, G4: somebody who reads all messages of the server makes dead processes look alive. Each then costs a grant lease, as one that is cut off.
func TestGrantWhileSomebodyReadsAllMessages(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		g := newGrants(t, 0)
		reader, stop := g.server.Client(t).Dedicate()
		t.Cleanup(stop)
		require.NoError(t, reader.Do(context.Background(), reader.B().Psubscribe().Pattern("*").Build()).Error())
		for _, dead := range []string{"00000001", "00000002"} {
			require.NoError(t, g.do(t, "ZADD", "rlock_queue:{"+g.name+"}", "1000", dead+"-0000-4000-8000-000000000000:1").Error())
		}
		require.NoError(t, g.do(t, "PEXPIRE", "rlock_queue:{"+g.name+"}", "60000").Error())
		g.joins(t, g.process(t))
		require.NoError(t, g.unlock())
		g.rest(t, g.gets(t, g.line[0].pendingLock, 2*grantLease+100*time.Millisecond))
	})
}

// G1, G2, G4: the lock is forced open while many processes wait. All get their turns, and the holder is told by its next renewal.
func TestForceUnlockWhileManyWait(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = 6 * time.Second
		g := newGrants(t, 6, rlock.Options{WatchdogTimeout: watchdog})
		answer(g.holder.Mutex(g.name).ForceUnlock(context.Background())).is(t, true)
		forced := time.Now()
		var line []pendingLock
		for _, p := range g.line {
			line = append(line, p.pendingLock)
		}
		g.rest(t, lockResult{unlock: func() error { return nil }}, line...)
		redistest.Eventually(t, watchdog, func() bool { return g.holder.Stats().Lost == 1 }, "told")
		requireTookAtMost(t, watchdog/2, forced, time.Now())
		require.ErrorIs(t, g.unlock(), rlock.ErrLost)
	})
}
