package rlock_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// seldom lets holders check their locks only every twenty minutes, so that anything they learn sooner reached them in a message.
var seldom = rlock.Options{WatchdogTimeout: time.Hour}

// ear returns the channel on which a Client receives messages from other Clients.
func ear(c *rlock.Client) string { return "rlock_client:{" + c.ID() + "}" }

// awaitEar waits until one connection, to any node, has subscribed to the channel of c.
func awaitEar(t testing.TB, rdb rueidis.Client, c *rlock.Client) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool {
		n := int64(0)
		for _, node := range rdb.Nodes() {
			for _, cmd := range []rueidis.Completed{
				node.B().PubsubNumsub().Channel(ear(c)).Build(), node.B().Arbitrary("PUBSUB", "SHARDNUMSUB", ear(c)).Build(),
			} {
				if counts, err := node.Do(context.Background(), cmd).AsIntMap(); err == nil {
					n += counts[ear(c)]
				}
			}
		}
		return n == 1
	}, "the Client listens on its channel")
}

// Locks without WithAsked cost nothing extra, and locks with it cost as much as docs/locks.md says.
func TestAskedCosts(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		watch := s.Client(t)
		loadScripts(t, newClient(t, s.Client(t)))
		// commands counts the commands since before, without those that rueidis and this test use to observe.
		commands := func(before map[string]int64) map[string]int64 {
			since := make(map[string]int64)
			for name, n := range redistest.Commands(t, watch) {
				if n -= before[name]; n > 0 && name != "info" && name != "ping" && !strings.HasPrefix(name, "client|") && name != "hello" {
					since[name] = n
				}
			}
			return since
		}
		var perPair map[string]int64 // commands of 100 Lock/unlock pairs, including those inside scripts
		for name, options := range map[string][]rlock.Option{"plain": nil, "asked": {rlock.WithAsked()}} {
			c, other := newClient(t, s.Client(t), seldom), newClient(t, s.Client(t))
			m := c.Mutex(name, options...)
			require.NoError(t, m.Do(t.Context(), func(context.Context) error { return nil })) // with WithAsked the Client now subscribes to its channel
			if options != nil {
				awaitEar(t, watch, c)
			}
			before := redistest.Commands(t, watch)
			for range 100 {
				require.NoError(t, m.Do(t.Context(), func(context.Context) error { return nil }))
			}
			since := commands(before)
			require.EqualValues(t, 200, since["evalsha"])
			if perPair == nil {
				perPair = since
			}
			if options == nil {
				channels, err := watch.Do(t.Context(), watch.B().PubsubChannels().Build()).AsStrSlice()
				require.NoError(t, err)
				require.NotContains(t, channels, ear(c))
			}
			require.Equal(t, perPair, since, "a free lock costs as much as without WithAsked")

			_, unlock, err := m.Lock(t.Context())
			require.NoError(t, err)
			published := redistest.Commands(t, watch)["publish"]
			waiter := lockAsync(t, other.Mutex(name))
			redistest.Eventually(t, testTimeout, func() bool { return exists(t, watch, "rlock_queue:{"+name+"}") }, "the waiter is in the queue")
			want := published
			if options != nil {
				want++ // the waiter was refused twice and has asked once
			}
			redistest.Eventually(t, testTimeout, func() bool { return redistest.Commands(t, watch)["publish"] == want }, "the waiter has published its messages")
			before = redistest.Commands(t, watch)
			sleep(time.Second)
			require.Empty(t, commands(before), "waiting costs nothing")
			require.NoError(t, unlock())
			waiter.getAndUnlock(t, testTimeout)
			c.Close()
			other.Close()
		}
	})
}

func exists(t testing.TB, rdb rueidis.Client, key string) bool {
	t.Helper()
	n, err := rdb.Do(context.Background(), rdb.B().Exists().Key(key).Build()).AsInt64()
	require.NoError(t, err)
	return n == 1
}

// One message reaches the holder in every deployment: RESP2, Sentinel, and a cluster with sharded or plain pub/sub.
func TestAskedOnDeployments(t *testing.T) {
	redistest.Parallel(t)
	cluster := func(t *testing.T) rueidis.Client { return redistest.StartCluster(t, 3, 0).Client(t) }
	for name, row := range map[string]struct {
		dial  func(t *testing.T) rueidis.Client
		plain bool
	}{
		"RESP2": {dial: func(t *testing.T) rueidis.Client {
			return redistest.Dial(t, redistest.Shared(t), protocol(true))
		}},
		"sentinel":                   {dial: func(t *testing.T) rueidis.Client { return redistest.StartSentinel(t).Client(t) }},
		"cluster":                    {dial: cluster},
		"cluster with plain pub/sub": {dial: cluster, plain: true},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			rdb := row.dial(t)
			o := seldom
			o.PlainPubSub = row.plain
			holder, waits := newClient(t, rdb, o), newClient(t, rdb, o)
			base := redistest.Name(t)
			for i, key := range []string{"a", "b", "{tag}c", "d"} {
				key = base + key
				ctx, unlock, err := holder.Mutex(key, rlock.WithAsked()).Lock(t.Context())
				require.NoError(t, err)
				if i == 0 {
					awaitEar(t, rdb, holder)
				}
				notAsked(t, ctx)
				waiter := lockAsync(t, waits.Mutex(key, rlock.WithAsked()))
				awaitAsked(t, ctx)
				require.NoError(t, unlock())
				got := waiter.get(t, testTimeout)
				require.NoError(t, got.err)
				require.NoError(t, got.unlock())
				ctx, unlock, err = holder.RWMutex(key, rlock.WithAsked()).Read().Lock(t.Context())
				require.NoError(t, err)
				writer := lockAsync(t, waits.RWMutex(key).Write())
				awaitAsked(t, ctx)
				require.NoError(t, unlock())
				got = writer.get(t, testTimeout)
				require.NoError(t, got.err)
				require.NoError(t, got.unlock())
			}
		})
	}
}

// logRecords collects the log of a Client.
type logRecords struct {
	mu   sync.Mutex // guards the following
	text strings.Builder
}

func (j *logRecords) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// count returns how often the text occurs.
func (j *logRecords) count(text string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Count(j.text.String(), text)
}

// A user without the right to subscribe or to publish locks as before, and its Client logs this once. The holder finds such waiters
// by polling.
func TestAskedForbidden(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t)
	admin := fixture{rdb: s.Client(t)}
	limited := func(t *testing.T, name string, rules ...string) (*rlock.Client, *logRecords) {
		t.Helper()
		all := append([]string{"ACL", "SETUSER", name, "reset", "resetchannels", "on", ">secret", "~*", "&redisson_*", "+@all"}, rules...)
		require.NoError(t, admin.do(t, all...).Error())
		j := new(logRecords)
		rdb := s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = name, "secret" })
		return newClient(t, rdb, rlock.Options{WatchdogTimeout: shortWatchdog, Logger: slog.New(slog.NewTextHandler(j, nil))}), j
	}
	t.Run("to listen", func(t *testing.T) {
		redistest.Parallel(t)
		c, j := limited(t, "deaf")
		other := newClient(t, s.Client(t))
		m := c.Mutex("deaf", rlock.WithAsked())
		require.NoError(t, m.Do(t.Context(), func(context.Context) error { return nil }))
		redistest.Eventually(t, testTimeout, func() bool { return j.count("cannot ask this Client") == 1 }, "the Client has logged it")
		for _, l := range []*rlock.Client{c, other} { // the holder finds the second waiter by polling
			ctx, unlock, err := m.Lock(t.Context())
			require.NoError(t, err)
			require.NotContains(t, rlock.Owner(ctx), ":11000000000", "the owner does not offer to be asked")
			waiter := lockAsync(t, l.Mutex("deaf"))
			awaitAsked(t, ctx)
			require.NoError(t, unlock())
			waiter.getAndUnlock(t, testTimeout)
		}
		require.Equal(t, 1, j.count("cannot ask this Client"))
	})
	t.Run("to speak", func(t *testing.T) {
		redistest.Parallel(t)
		c, j := limited(t, "dumb")
		holder := newClient(t, s.Client(t), rlock.Options{WatchdogTimeout: shortWatchdog})
		for _, name := range []string{"dumb1", "dumb2"} {
			ctx, unlock, err := holder.Mutex(name, rlock.WithAsked()).Lock(t.Context())
			require.NoError(t, err)
			waiter := lockAsync(t, c.Mutex(name))
			awaitAsked(t, ctx)
			require.NoError(t, unlock())
			waiter.getAndUnlock(t, testTimeout)
		}
		redistest.Eventually(t, testTimeout, func() bool { return j.count("cannot ask other processes") == 1 }, "the Client has logged it once")
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
			ctx, unlock, err := holder.Mutex(b.name, rlock.WithAsked()).Lock(t.Context())
			require.NoError(t, err)
			b.earsOf(t, holder)
			if row.holder != nil {
				row.holder(near)
			}
			if row.waiter != nil {
				row.waiter(far)
			}
			sent := make(chan struct{})
			isSent := sync.OnceFunc(func() { close(sent) })
			far.OnReply(func(cmd []string) redistest.Action {
				if cmd[0] == "PUBLISH" && cmd[1] == ear(holder) {
					isSent()
				}
				return redistest.Pass
			})
			waiter := lockAsync(t, waits.Mutex(b.name))
			redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, "rlock_queue:{"+b.name+"}") }, "the waiter is in the queue")
			if row.then != nil {
				require.NoError(t, within(t, async(func() error { <-sent; return nil }), testTimeout), "the waiter has sent its message")
				notAsked(t, ctx)
				row.then(near)
			}
			awaitAsked(t, ctx)
			waiter.cancel()
			require.ErrorIs(t, waiter.get(t, testTimeout).err, rlock.ErrNotAcquired)
			require.NoError(t, unlock())
		})
	}
}

// After a server restarts without its data, holders of newly taken locks receive messages as before.
func TestAskedAfterARestart(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		b := fixture{rdb: s.Client(t), name: "restart"}
		holder, waits := newClient(t, s.Client(t), seldom), newClient(t, s.Client(t), seldom)
		require.NoError(t, holder.Mutex(b.name, rlock.WithAsked()).Do(t.Context(), func(context.Context) error { return nil }))
		b.earsOf(t, holder)
		s.Kill()
		s.Restart()
		ctx, unlock, err := holder.Mutex(b.name, rlock.WithAsked()).Lock(t.Context())
		require.NoError(t, err)
		waiter := lockAsync(t, waits.Mutex(b.name))
		awaitAsked(t, ctx)
		require.NoError(t, unlock())
		waiter.getAndUnlock(t, testTimeout)
	})
}

// A late, repeated or forged message costs nothing but time: nobody gets or loses the lock, and no later hold is notified.
func TestAskedLies(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, seldom)
		m := b.Mutex(b.name, rlock.WithAsked())
		say := func(text string) {
			t.Helper()
			require.NoError(t, b.do(t, "PUBLISH", ear(b.Client), text).Error())
		}
		ctx, unlock, err := m.Lock(t.Context())
		require.NoError(t, err)
		b.earsOf(t, b.Client)
		_, tag, _ := strings.Cut(rlock.Owner(ctx), ":")
		for _, text := range []string{
			"", "asked", "0 asked", "0 asked ", "0 asked 1", "0 asked x", "0 asked 19999999999999999999", "0 asked 11999999999999999999", "0 probe " + tag,
			"1 asked " + tag, "0 ASKED " + tag, "0 asked " + tag + " ", "0 asked -" + tag, "0 asked " + strings.Repeat("1", 10_000), "\x00\xff",
		} {
			say(text)
		}
		const sentinel = "0 asked 11000000000000000000"
		for range 200 {
			say(sentinel) // more than the Client remembers
		}
		heard, err := b.Ask(t.Context(), b.name+":nobody")
		require.NoError(t, err)
		require.False(t, heard)
		notAsked(t, ctx)
		for range 3 {
			say("0 asked " + tag) // forged: nobody waits
		}
		awaitAsked(t, ctx)
		require.NoError(t, ctx.Err())
		held, err := m.IsHeld(ctx)
		require.NoError(t, err)
		require.True(t, held)
		require.NoError(t, unlock())
		say("0 asked " + tag) // late
		ctx, unlock, err = m.Lock(t.Context())
		require.NoError(t, err)
		notAsked(t, ctx)
		require.NoError(t, unlock())
	})
}

// The holder finds waiters that only subscribe to the unlock channel, such as Redisson's, by polling.
func TestAskedByOutsiders(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
		ctx, unlock, err := b.Mutex(b.name, rlock.WithAsked()).Lock(t.Context())
		require.NoError(t, err)
		listen := func() (leave func()) {
			conn, giveBack := b.rdb.Dedicate()
			require.NoError(t, conn.Do(t.Context(), conn.B().Subscribe().Channel("redisson_lock__channel:{"+b.name+"}").Build()).Error())
			return func() { conn.Close(); giveBack() }
		}
		stop := listen()
		b.awaitSubscribers(t, b.name, 1)
		awaitAsked(t, ctx)
		stop()
		require.NoError(t, unlock())
	})
}

// A reader that waits to become the writer never asks itself, even if it finds its own traces when it polls for waiters.
func TestAskedNotByItself(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
		up := b.RWMutex(b.name, rlock.WithAsked()).Upgradeable()
		ctx, unlock, err := up.Lock(t.Context())
		require.NoError(t, err)
		other, unlockOther, err := newClient(t, b.rdb).RWMutex(b.name, rlock.WithAsked()).Read().Lock(t.Context())
		require.NoError(t, err)
		upgraded := async(func() error { return up.UpgradeDo(ctx, func(context.Context) error { return nil }) })
		awaitAsked(t, other)
		redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, "rlock_writers:{"+b.name+"}") }, "the upgrade is noted in Redis")
		sleep(shortWatchdog/3 + 2*time.Second) // time for the holder to poll
		notAsked(t, ctx)
		require.NoError(t, unlockOther())
		require.NoError(t, within(t, upgraded, testTimeout))
		require.NoError(t, unlock())
	})
}

// The message may reach the holder before the reply that it has the lock. The Client remembers the message.
func TestAskedBeforeTheAnswer(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newBareFixture(t)
		proxy := redistest.StartProxy(t, redistest.Shared(t))
		holder, waits := newClient(t, redistest.Dial(t, proxy.Addr()), seldom), newClient(t, b.rdb, seldom)
		m := holder.Mutex(b.name, rlock.WithAsked())
		require.NoError(t, m.Do(t.Context(), func(context.Context) error { return nil }))
		b.earsOf(t, holder)
		heard := make(chan struct{}, 1)
		proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
		proxy.OnReply(func(words []string) redistest.Action {
			if words[0] == "MESSAGE" && words[1] == ear(holder) {
				heard <- struct{}{}
			}
			return redistest.Pass
		})
		first := lockAsync(t, m)
		redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, b.name) }, "Redis has granted the lock, but the reply is held back")
		waiter := lockAsync(t, waits.Mutex(b.name))
		select {
		case <-heard:
		case <-time.After(testTimeout):
			require.FailNow(t, "the waiter sent no message")
		}
		sleep(50 * time.Millisecond) // the holder has processed the message
		first.stillWaits(t)
		proxy.Release()
		got := first.get(t, testTimeout)
		require.NoError(t, got.err)
		awaitAsked(t, got.ctx)
		require.NoError(t, got.unlock())
		got = waiter.get(t, testTimeout)
		require.NoError(t, got.err)
		require.NoError(t, got.unlock())
	})
}

// A process takes many locks at once, and is asked for all of them before it learns that it has them.
func TestAskedForManyAtOnce(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const n = 200
		c, proxy, b := behindProxy(t, pipelined, seldom)
		require.NoError(t, c.Mutex(b.name, rlock.WithAsked()).Do(t.Context(), nothing))
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
		redistest.Eventually(t, testTimeout, func() bool {
			size, err := b.do(t, "DBSIZE").AsInt64()
			return err == nil && size >= n
		}, "it has them in Redis")
		published := redistest.Commands(t, b.rdb)["publish"]
		for i := range n {
			waiters = append(waiters, lockAsync(t, b.Mutex(fmt.Sprint(b.name, i))))
		}
		redistest.Eventually(t, testTimeout, func() bool { return redistest.Commands(t, b.rdb)["publish"] >= published+n }, "it is asked for all")
		holds.Store(false)
		proxy.Release()
		for _, h := range holders {
			got := h.get(t, testTimeout)
			require.NoError(t, got.err)
			awaitAsked(t, got.ctx)
			require.NoError(t, got.unlock())
		}
		for _, w := range waiters {
			w.getAndUnlock(t, testTimeout)
		}
	})
}
