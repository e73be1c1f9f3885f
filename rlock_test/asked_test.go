package rlock_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// awaitAsked waits until a waiter has asked the hold that ctx carries.
func awaitAsked(t testing.TB, ctx context.Context) {
	t.Helper()
	asked := rlock.Asked(ctx)
	require.NotNil(t, asked, "the hold was taken with WithAsked")
	how := make(chan error, 1)
	go func() { // ends with the section
		select {
		case <-asked:
			how <- nil
		case <-ctx.Done():
			how <- context.Cause(ctx)
		}
	}()
	require.NoError(t, redistest.Within(t, testTimeout, how, "a waiter has asked"))
}

// notAsked requires that no waiter has asked so far.
func notAsked(t testing.TB, ctx context.Context) {
	t.Helper()
	asked := rlock.Asked(ctx)
	require.NotNil(t, asked, "the hold was taken with WithAsked")
	select {
	case <-asked:
		require.FailNow(t, "a waiter has asked")
	default:
	}
}

// ear returns the channel on which a Client receives messages from other Clients.
func ear(c *rlock.Client) string { return "rlock_client:{" + c.ID() + "}" }

// earsOf waits until the Clients listen on their channels.
func (b fixture) earsOf(t testing.TB, all ...*rlock.Client) {
	t.Helper()
	for _, c := range all {
		awaitEar(t, b.rdb, c)
	}
}

// awaitEar waits until one connection, to any node, has subscribed to the channel of c.
func awaitEar(t testing.TB, rdb rueidis.Client, c *rlock.Client) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool {
		n := int64(0)
		for _, node := range rdb.Nodes() {
			for _, kind := range []string{"NUMSUB", "SHARDNUMSUB"} {
				if counts, err := node.Do(context.Background(), node.B().Arbitrary("PUBSUB", kind, ear(c)).Build()).AsIntMap(); err == nil {
					n += counts[ear(c)]
				}
			}
		}
		return n == 1
	}, "the Client listens on its channel")
}

// awaitQueued waits until somebody is in the queue of a lock in Redis.
func (b fixture) awaitQueued(t testing.TB, name string) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, "rlock_queue:{"+name+"}") }, "somebody is in the queue of "+name)
}

// A writer that waits for readers of several processes asks all of them, also those that have joined another one.
func TestAskedOfReaders(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		clients := []*rlock.Client{b.Client, newClient(t, b.rdb), newClient(t, b.rdb)}
		var readers []lockResult
		for _, c := range clients {
			for range 2 { // the second reader joins the first
				readers = append(readers, locked(t, c.RWMutex(b.name, rlock.WithAsked()).Read()))
			}
		}
		b.earsOf(t, clients...)
		for _, r := range readers {
			notAsked(t, r.ctx)
		}
		writer := lockAsync(t, newClient(t, b.rdb).RWMutex(b.name).Write())
		for _, r := range readers {
			awaitAsked(t, r.ctx)
			require.NoError(t, r.unlock())
		}
		got := writer.gets(t, testTimeout)
		require.Nil(t, rlock.Asked(got.ctx), "the writer has no WithAsked")
		require.NoError(t, got.unlock())
	})
}

// The same if the refusal names a reader of the writer's own process.
func TestAskedOfReadersBesideOnesOwn(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		other, c := newClient(t, b.rdb), b.Client
		for range 20 { // it names any of them
			theirs := locked(t, other.RWMutex(b.name, rlock.WithAsked()).Read())
			own := locked(t, c.RWMutex(b.name, rlock.WithAsked()).Read())
			b.earsOf(t, other, c)
			began := time.Now()
			writer := lockAsync(t, c.RWMutex(b.name).Write())
			awaitAsked(t, own.ctx)
			awaitAsked(t, theirs.ctx)
			requireTookAtMost(t, time.Second, began, time.Now()) // and not when they look
			require.NoError(t, theirs.unlock())
			require.NoError(t, own.unlock())
			require.NoError(t, writer.gets(t, testTimeout).unlock())
		}
	})
}

// Many readers are asked side by side, not in turn: far from Redis that would take a round trip each.
func TestAskedOfManyReadersFarAway(t *testing.T) {
	const readers, trip = 50, 200 * time.Millisecond
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
		var inside []lockResult
		for range readers {
			c := newClient(t, b.rdb)
			inside = append(inside, locked(t, c.RWMutex(b.name, rlock.WithAsked()).Read()))
			b.earsOf(t, c)
		}
		proxy := redistest.StartProxy(t, s.Addr())
		far := newClient(t, s.Client(t, redistest.Via(proxy)))
		lockAndUnlock(t, far.Mutex("connects"))
		proxy.Delay(trip / 2)
		began := time.Now()
		writer := lockAsync(t, far.RWMutex(b.name).Write())
		for _, r := range inside {
			awaitAsked(t, r.ctx)
		}
		require.Less(t, time.Since(began), 20*trip) // the writer has subscribed, and joined the queue
		for _, r := range inside {
			require.NoError(t, r.unlock())
		}
		writer.getAndUnlock(t, testTimeout)
	})
}

// Readers of one process do not ask each other. A writer asks them, and is asked by the next reader.
func TestAskedOfReadersAndWriters(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		rw := newFixture(t).RWMutex(redistest.Name(t), rlock.WithAsked())
		one, two := locked(t, rw.Read()), locked(t, rw.Read())
		notAsked(t, one.ctx)
		require.NoError(t, two.unlock())
		writer := lockAsync(t, rw.Write())
		awaitAsked(t, one.ctx)
		require.NoError(t, one.unlock())
		w := writer.gets(t, testTimeout)
		notAsked(t, w.ctx)
		reader := lockAsync(t, rw.Read())
		awaitAsked(t, w.ctx)
		require.NoError(t, w.unlock())
		reader.getAndUnlock(t, testTimeout)
	})
}

// A reader that waits to become the writer asks the other readers, and never itself, even if it finds its own traces when it polls for
// waiters.
func TestAskedByAnUpgrade(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
		up := b.RWMutex(b.name, rlock.WithAsked()).Upgradeable()
		hold, other := locked(t, up), locked(t, newClient(t, b.rdb).RWMutex(b.name, rlock.WithAsked()).Read())
		notAsked(t, hold.ctx)
		upgraded := async(func() error { return up.UpgradeDo(hold.ctx, nothing) })
		awaitAsked(t, other.ctx)
		redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, "rlock_writers:{"+b.name+"}") }, "the upgrade is noted in Redis")
		sleep(shortWatchdog/3 + 2*time.Second) // time for the holder to poll
		notAsked(t, hold.ctx)
		require.NoError(t, other.unlock())
		require.NoError(t, within(t, upgraded, testTimeout))
		another := lockAsync(t, up)
		awaitAsked(t, hold.ctx)
		require.NoError(t, hold.unlock())
		another.getAndUnlock(t, testTimeout)
	})
}

// A section that holds several locks, one with a fixed lease, is asked as soon as a waiter wants any of them, at each of its levels.
func TestAskedForOneOfSeveral(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		other := newClient(t, b.rdb)
		all := rlock.All(
			b.Mutex(b.name+":1", rlock.WithAsked()), b.FairMutex(b.name+":2", rlock.WithAsked()),
			b.Mutex(b.name+":3", rlock.WithAsked(), rlock.WithLease(time.Hour)), b.Mutex(b.name+":4"),
		)
		for _, l := range []*rlock.Mutex{other.Mutex(b.name + ":1"), other.FairMutex(b.name + ":2"), other.Mutex(b.name + ":3")} {
			section := locked(t, all)
			inner := locked(t, under{section.ctx, b.Mutex(b.name + ":5")})
			b.earsOf(t, b.Client)
			notAsked(t, section.ctx)
			notAsked(t, inner.ctx)
			waiter := lockAsync(t, l)
			awaitAsked(t, section.ctx)
			awaitAsked(t, inner.ctx)
			require.NoError(t, inner.unlock())
			require.NoError(t, section.unlock())
			waiter.getAndUnlock(t, testTimeout)
		}
	})
}

// WithAskedAfter gives each hold its term, however it is taken: waiters who come earlier ask at its end, later ones at once. Of several locks
// the longest term counts, from when all are held.
func TestAskedAfter(t *testing.T) {
	const term = 300 * time.Millisecond
	after := rlock.WithAskedAfter(term)
	of := func(take func(c *rlock.Client) rlock.Locker) func(c, _, _ *rlock.Client) rlock.Locker {
		return func(c, _, _ *rlock.Client) rlock.Locker { return take(c) }
	}
	for kind, lock := range map[string]func(c, second, third *rlock.Client) rlock.Locker{
		"plain":       of(func(c *rlock.Client) rlock.Locker { return c.Mutex("x", after) }),
		"fenced":      of(func(c *rlock.Client) rlock.Locker { return c.FencedMutex("x", after) }),
		"fair":        of(func(c *rlock.Client) rlock.Locker { return c.FairMutex("x", after) }),
		"write":       of(func(c *rlock.Client) rlock.Locker { return c.RWMutex("x", after).Write() }),
		"Upgradeable": of(func(c *rlock.Client) rlock.Locker { return c.RWMutex("x", after).Upgradeable() }),
		"WithLinger":  of(func(c *rlock.Client) rlock.Locker { return c.Mutex("x", rlock.WithLinger(long), after) }),
		"All of one call": of(func(c *rlock.Client) rlock.Locker {
			return rlock.All(c.Mutex("x", rlock.WithAsked()), c.Mutex("y", rlock.WithAskedAfter(term/2)), c.Mutex("z", after))
		}),
		"All": of(func(c *rlock.Client) rlock.Locker {
			return rlock.All(c.Mutex("z", after), c.FairMutex("y"), c.FairMutex("x", rlock.WithAsked()))
		}),
		"Quorum": func(c, second, third *rlock.Client) rlock.Locker {
			return rlock.Quorum(c.Mutex("x", after), second.Mutex("x:2", after), third.Mutex("x:3", after))
		},
	} {
		runVirtual(t, kind, func(t *testing.T, b fixture) {
			side := func() rlock.Locker {
				return lock(newClient(t, b.rdb), newClient(t, b.rdb), newClient(t, b.rdb))
			}
			here, elsewhere := side(), side()
			for _, waits := range []rlock.Locker{here, elsewhere} {
				if kind == "Quorum" && waits == here { // its waiters in the holder's process stay there
					continue
				}
				hold, err := rlock.Acquire(t.Context(), here)
				require.NoError(t, err)
				began := time.Now()
				waiter := lockAsync(t, waits)
				<-hold.Asked()
				requireTook(t, term, began, time.Now())
				require.NoError(t, hold.Unlock())
				next := waiter.gets(t, testTimeout)
				require.NoError(t, next.unlock())
				lockAndUnlock(t, here) // back from the other process, if it keeps its lock

				hold, err = rlock.Acquire(t.Context(), here)
				require.NoError(t, err)
				sleep(2 * term)
				notAsked(t, hold.Context())
				began = time.Now()
				waiter = lockAsync(t, waits)
				<-hold.Asked()
				requireTook(t, 0, began, time.Now())
				require.NoError(t, hold.Unlock())
				waiter.getAndUnlock(t, testTimeout)
				lockAndUnlock(t, here)

				hold, err = rlock.Acquire(t.Context(), here)
				require.NoError(t, err)
				asked := hold.Asked()
				waiter = lockAsync(t, waits)
				sleep(term / 3)
				require.NoError(t, hold.Unlock())
				next = waiter.gets(t, testTimeout)
				sleep(2 * term)
				select {
				case <-asked:
					t.Fatal("the hold has ended before its term")
				default:
				}
				require.NoError(t, next.unlock())
			}
		})
	}
}

// A waiter that gives up leaves its place in the queue to one like it. One with WithAsked takes a place of its own, and can be asked.
func TestAskedInheritsNoPlace(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		hold := locked(t, newClient(t, b.rdb).Mutex(b.name))
		first := lockAsync(t, b.Mutex(b.name))
		b.awaitQueued(t, b.name)
		second := lockAsync(t, b.Mutex(b.name, rlock.WithAsked()))
		redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 2 }, "both wait")
		first.cancel()
		require.ErrorIs(t, first.get(t, testTimeout).err, context.Canceled)
		b.awaitQueued(t, b.name)
		require.NoError(t, hold.unlock())
		got := second.gets(t, testTimeout)
		notAsked(t, got.ctx)
		require.NoError(t, got.unlock())
	})
}

// Either all members of a quorum can be asked, or none. Permits cannot be asked for.
func TestAskedNeedsItsLock(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		two, three := newClient(t, b.rdb), newClient(t, b.rdb)
		_, _, err := rlock.Quorum(b.Mutex("q1", rlock.WithAsked()), two.Mutex("q2"), three.Mutex("q3")).Lock(t.Context())
		require.ErrorContains(t, err, "give it to all members")
		_, _, err = rlock.Quorum(b.Mutex("q1", rlock.WithAsked()), two.Mutex("q2", rlock.WithAskedAfter(time.Second)),
			three.Mutex("q3", rlock.WithAsked())).Lock(t.Context())
		require.ErrorContains(t, err, "differs from the first in WithAskedAfter")
		_, _, err = b.Mutex("x", rlock.WithAskedAfter(0)).Lock(t.Context())
		require.ErrorContains(t, err, "WithAskedAfter is 0s, want at least 1ms")
		_, _, err = b.PermitSemaphore("p", rlock.WithAsked()).Acquire(t.Context())
		require.ErrorContains(t, err, "WithAsked is for locks")
	})
}

// seldom lets holders check their locks only every twenty minutes, so that anything they learn sooner reached them in a message.
var seldom = rlock.Options{WatchdogTimeout: time.Hour}

func exists(t testing.TB, rdb rueidis.Client, key string) bool {
	t.Helper()
	n := answer(rdb.Do(context.Background(), rdb.B().Exists().Key(key).Build()).AsInt64()).ok(t)
	return n == 1
}

// A user without the right to subscribe or to publish locks as before, and its Client logs this once. The holder finds such waiters
// by polling.
func TestAskedForbidden(t *testing.T) {
	const watchdog = 3 * shortWatchdog // it polls every third of that, and a busy machine takes its time to renew
	redistest.Parallel(t)
	s := redistest.Start(t)
	admin := fixture{rdb: s.Client(t)}
	limited := func(t *testing.T, name string, rules ...string) (*rlock.Client, *lockedBuffer) {
		t.Helper()
		all := append([]string{"ACL", "SETUSER", name, "reset", "resetchannels", "on", ">secret", "~*", "&redisson_*", "+@all"}, rules...)
		require.NoError(t, admin.do(t, all...).Error())
		j := new(lockedBuffer)
		rdb := s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = name, "secret" })
		return newClient(t, rdb, rlock.Options{WatchdogTimeout: watchdog, Logger: slog.New(slog.NewTextHandler(j, nil))}), j
	}
	t.Run("to listen", func(t *testing.T) {
		redistest.Parallel(t)
		c, j := limited(t, "deaf")
		other := newClient(t, s.Client(t))
		m := c.Mutex("deaf", rlock.WithAsked())
		lockAndUnlock(t, m)
		redistest.Eventually(t, testTimeout, func() bool { return strings.Count(j.String(), "cannot ask this Client") == 1 }, "the Client has logged it")
		for _, l := range []*rlock.Client{c, other} { // the holder finds the second waiter by polling
			hold := locked(t, m)
			require.NotContains(t, rlock.Owner(hold.ctx), ":11000000000", "the owner does not offer to be asked")
			waiter := lockAsync(t, l.Mutex("deaf"))
			awaitAsked(t, hold.ctx)
			require.NoError(t, hold.unlock())
			waiter.getAndUnlock(t, testTimeout)
		}
		require.Equal(t, 1, strings.Count(j.String(), "cannot ask this Client"))
	})
	t.Run("to speak", func(t *testing.T) {
		redistest.Parallel(t)
		c, j := limited(t, "dumb")
		holder := newClient(t, s.Client(t), rlock.Options{WatchdogTimeout: watchdog})
		for _, name := range []string{"dumb1", "dumb2"} {
			hold := locked(t, holder.Mutex(name, rlock.WithAsked()))
			waiter := lockAsync(t, c.Mutex(name))
			awaitAsked(t, hold.ctx)
			require.NoError(t, hold.unlock())
			waiter.getAndUnlock(t, testTimeout)
		}
		redistest.Eventually(t, testTimeout, func() bool { return strings.Count(j.String(), "cannot ask other processes") == 1 }, "the Client has logged it once")
	})
}

// A waiter repeats a message if the message or its reply is lost. A holder that missed a message looks for waiters once it is
// connected again.
func TestAskedReconnects(t *testing.T) {
	for name, row := range map[string]struct {
		holder, waiter func(p *redistest.Proxy) // run before the waiter arrives
		then           func(p *redistest.Proxy) // run on the holder's proxy once the waiter waits
	}{
		"the message is lost with its connection": {waiter: func(p *redistest.Proxy) { p.OnRequest(redistest.Nth(1, "PUBLISH", redistest.Cut)) }},
		"its answer is lost":                      {waiter: func(p *redistest.Proxy) { p.OnReply(redistest.Nth(1, "PUBLISH", redistest.Cut)) }},
		"the server is busy":                      {waiter: func(p *redistest.Proxy) { p.OnRequest(redistest.Nth(1, "PUBLISH", redistest.Fail("LOADING it comes"))) }},
		"the holder was cut off": {
			holder: func(p *redistest.Proxy) { p.Refuse(true); p.CutAll() }, then: func(p *redistest.Proxy) { p.Refuse(false) },
		},
		"the holder's connection is silent": {
			holder: func(p *redistest.Proxy) { p.OnReply(redistest.Each("MESSAGE", redistest.Drop)) }, then: func(p *redistest.Proxy) { p.CutAll() },
		},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b := newBareFixture(t)
			near, far := redistest.StartProxy(t, redistest.Shared(t)), redistest.StartProxy(t, redistest.Shared(t))
			holder := newClient(t, redistest.Dial(t, near.Addr()), seldom)
			waits := newClient(t, redistest.Dial(t, far.Addr()), seldom)
			loadScripts(t, waits)
			hold := locked(t, holder.Mutex(b.name, rlock.WithAsked()))
			b.earsOf(t, holder)
			if row.holder != nil {
				row.holder(near)
			}
			if row.waiter != nil {
				row.waiter(far)
			}
			sent := make(chan error, 10)
			far.OnReply(func(cmd []string) redistest.Action {
				if cmd[0] == "PUBLISH" && cmd[1] == ear(holder) {
					sent <- nil
				}
				return redistest.Pass
			})
			waiter := lockAsync(t, waits.Mutex(b.name))
			b.awaitQueued(t, b.name)
			if row.then != nil {
				require.NoError(t, within(t, sent, testTimeout), "the waiter has sent its message")
				notAsked(t, hold.ctx)
				row.then(near)
			}
			awaitAsked(t, hold.ctx)
			waiter.cancel()
			require.ErrorIs(t, waiter.get(t, testTimeout).err, rlock.ErrNotAcquired)
			require.NoError(t, hold.unlock())
		})
	}
}

// A late, repeated or forged message costs nothing but time: nobody gets or loses the lock, and no later hold is notified.
func TestAskedLies(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		o := failAfter(time.Hour)
		o.WatchdogTimeout = seldom.WatchdogTimeout
		b := newFixture(t, o)
		m := b.Mutex(b.name, rlock.WithAsked())
		say := func(text string) {
			t.Helper()
			require.NoError(t, b.do(t, "PUBLISH", ear(b.Client), text).Error())
		}
		hold := locked(t, m)
		b.earsOf(t, b.Client)
		_, tag, _ := strings.Cut(rlock.Owner(hold.ctx), ":")
		for _, text := range []string{
			"", "asked", "0 asked", "0 asked ", "0 asked 1", "0 asked x", "0 asked 19999999999999999999", "0 asked 11999999999999999999", "0 probe " + tag,
			"1 asked " + tag, "0 ASKED " + tag, "0 asked " + tag + " ", "0 asked -" + tag, "0 asked " + strings.Repeat("1", 10_000), "\x00\xff",
			"0 tried x", "0 tried 11000000000000000000", "0 waits x", "0 deadlock x", "0 found x", "0 other x",
		} {
			say(text)
		}
		const sentinel = "0 asked 11000000000000000000"
		for range 200 {
			say(sentinel) // more than the Client remembers
		}
		answer(b.Ask(t.Context(), b.name+":nobody")).is(t, false)
		notAsked(t, hold.ctx)
		for range 3 {
			say("0 asked " + tag) // forged: nobody waits
		}
		awaitAsked(t, hold.ctx)
		require.NoError(t, hold.ctx.Err())
		answer(m.IsHeld(hold.ctx)).is(t, true)
		require.NoError(t, hold.unlock())
		say("0 asked " + tag) // late
		next := locked(t, m)
		notAsked(t, next.ctx)
		require.NoError(t, next.unlock())
	})
}

// A process takes many locks at once, and is asked for all of them before it learns that it has them.
func TestAskedForManyAtOnce(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const n = 200
		c, proxy, b := behindProxy(t, pipelined, seldom)
		lockAndUnlock(t, c.Mutex(b.name, rlock.WithAsked()))
		awaitEar(t, b.rdb, c)
		var holds atomic.Bool
		holds.Store(true)
		proxy.OnReply(func(cmd []string) redistest.Action {
			if holds.Load() && cmd[0] == "EVALSHA" {
				return redistest.Hold
			}
			return redistest.Pass
		})
		var holders, waiters []pendingLock
		for i := range n {
			holders = append(holders, lockAsync(t, c.Mutex(fmt.Sprint(b.name, i), rlock.WithAsked())))
		}
		redistest.Eventually(t, testTimeout, func() bool { return b.size(t) >= n }, "it has them in Redis")
		published := redistest.Commands(t, b.rdb)["publish"]
		for i := range n {
			waiters = append(waiters, lockAsync(t, b.Mutex(fmt.Sprint(b.name, i))))
		}
		redistest.Eventually(t, testTimeout, func() bool { return redistest.Commands(t, b.rdb)["publish"] >= published+n }, "it is asked for all")
		holds.Store(false)
		proxy.Release()
		for _, h := range holders {
			got := h.gets(t, testTimeout)
			awaitAsked(t, got.ctx)
			require.NoError(t, got.unlock())
		}
		for _, w := range waiters {
			w.getAndUnlock(t, testTimeout)
		}
	})
}

// lateAsker is a client whose goroutine goes on late after a message to an ear.
type lateAsker struct {
	rueidis.Client
	goOn chan struct{}
}

func (c lateAsker) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	speaks := cmd.Commands()[0] == "PUBLISH" // a command is used up by Do
	reply := c.Client.Do(ctx, cmd)
	if speaks {
		<-c.goOn
	}
	return reply
}

// A waiter asks a holder whose ear is not there yet, and is refused again, now with its place, before it knows that nobody heard. In between
// the ear has come, and the holder has seen nobody. The waiter asks once more.
func TestAskedWhileTheMessageIsUnderWay(t *testing.T) {
	redistest.OnlyVirtual(t, "it relies on what has happened", func(t *testing.T) {
		b := newFixture(t)
		mine, theirs := redistest.StartProxy(t, redistest.Shared(t)), redistest.StartProxy(t, redistest.Shared(t))
		holder := newClient(t, redistest.Dial(t, mine.Addr()), seldom)
		rdb := lateAsker{redistest.Dial(t, theirs.Addr()), make(chan struct{})}
		waiter := newClient(t, rdb, seldom)
		lockAndUnlock(t, holder.Mutex(b.name))
		lockAndUnlock(t, waiter.Mutex(b.name))
		hold := func(cmd []string) redistest.Action {
			if cmd[0] == "SUBSCRIBE" {
				return redistest.Hold
			}
			return redistest.Pass
		}
		mine.OnRequest(hold)
		theirs.OnRequest(hold)
		h := locked(t, holder.Mutex(b.name, rlock.WithAsked()))
		waits := lockAsync(t, waiter.Mutex(b.name))
		redistest.Settle(t) // it has asked
		mine.Release()
		b.earsOf(t, holder)
		redistest.Settle(t) // the holder has looked
		notAsked(t, h.ctx)
		theirs.Release()
		b.awaitQueued(t, b.name)
		redistest.Settle(t) // it has been refused again
		close(rdb.goOn)
		awaitAsked(t, h.ctx)
		require.NoError(t, h.unlock())
		waits.getAndUnlock(t, testTimeout)
	})
}
