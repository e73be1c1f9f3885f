package rlock_test

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// G5: if the server has no scripts, or denies them to this user, Lock of any kind fails at once and leaves nothing behind. The
// error is one line with the missing commands and where to look.
func TestServerWithoutScripts(t *testing.T) {
	redistest.Parallel(t)
	const unknownSHA, unknown = "unknown command .EVALSHA.", "unknown command .EVAL." // the quotes differ
	for name, row := range map[string]struct {
		args, rules []string
		says        string
	}{
		"neither":     {[]string{"--rename-command", "EVALSHA", "", "--rename-command", "EVAL", ""}, nil, unknownSHA},
		"no EVALSHA":  {[]string{"--rename-command", "EVALSHA", ""}, nil, unknownSHA},
		"no EVAL":     {[]string{"--rename-command", "EVAL", ""}, nil, unknown},
		"not allowed": {nil, []string{"-evalsha", "-eval"}, `NOPERM .*'evalsha' command.*`},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			s := redistest.Start(t, row.args...)
			b := fixture{rdb: s.Client(t)}
			require.NoError(t, b.do(t, append([]string{"ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all"}, row.rules...)...).Error())
			client := func() *rlock.Client {
				return newClient(t, s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "shop", "secret" }))
			}
			c := client()
			rw := c.RWMutex("order:42")
			for kind, lock := range map[string]rlock.Locker{
				"plain": c.Mutex("order:42"), "fenced": c.FencedMutex("order:42"), "fair": c.FairMutex("order:42"),
				"read": rw.Read(), "write": rw.Write(), "All": rlock.All(c.Mutex("order:42"), c.Mutex("order:43")),
				"Quorum": rlock.Quorum(c.Mutex("order:42"), client().Mutex("order:43"), client().Mutex("order:44")),
			} {
				ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
				_, _, err := lock.Lock(ctx)
				cancel()
				require.Regexp(t, `^rlock: "[^\n]*": (fewer than 2 of 3 servers took part: )?[a-z_]+ script: the server runs no scripts: `+
					row.says+`; every lock needs EVALSHA and EVAL: see that the server has them, ACLs allow them, and a proxy before it passes them on$`, err, kind)
				var said *rueidis.RedisError
				require.ErrorAs(t, err, &said, kind)
				require.NotErrorIs(t, err, rlock.ErrUnreachable, kind)
				require.NotErrorIs(t, err, rlock.ErrNotAcquired, kind)
			}
			answer(b.do(t, "DBSIZE").AsInt64()).is(t, 0)
		})
	}
}

// G4: a waiter whose process gets no connection for its subscription, because the server has as many as it takes, looks at the lock once a
// second. The Logger hears of it once, until there was a connection.
func TestWaitersAtMaxclients(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t)
	var log lockedBuffer
	// By itself, rueidis spreads commands over several connections, which it dials when they are first used; and on a machine that stood
	// still for a second, it would end an idle one whose answer is late.
	a := newClient(t, s.Client(t, pipelined), rlock.Options{WatchdogTimeout: time.Hour})
	b := newClient(t, s.Client(t, pipelined), rlock.Options{WatchdogTimeout: time.Hour, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for _, c := range []*rlock.Client{a, b} { // connect
		require.NoError(t, c.Mutex("warm").Do(t.Context(), nothing))
	}
	admin := fixture{rdb: s.Client(t)}
	const warning = `level=WARN msg="rlock: Redis answers, but takes no subscription; until it does, nobody is woken, and waiters look once a second`
	page := answer(os.ReadFile("../docs/troubleshooting.md")).ok(t)
	require.Contains(t, string(page), warning)
	warnings := func() int { return strings.Count(log.String(), warning) }
	permits := func(c *rlock.Client) *rlock.Semaphore { return c.Semaphore("permits") }
	answer(permits(a).TrySetPermits(t.Context(), 1)).ok(t)

	handles := func(c *rlock.Client) map[string]rlock.Locker {
		return map[string]rlock.Locker{
			"plain": c.Mutex("plain"), "fenced": c.FencedMutex("fenced"), "fair": c.FairMutex("fair"), "write": c.RWMutex("rw").Write(),
			"read": c.RWMutex("rw2").Read(), "all": rlock.All(c.Mutex("all"), c.FencedMutex("all2")),
		}
	}
	round := func(n int) {
		require.NoError(t, admin.do(t, "CONFIG", "SET", "maxclients", "1").Error())
		unlocks, waits := make(map[string]rlock.UnlockFunc), make(map[string]pendingLock)
		for kind, l := range handles(a) {
			if kind == "read" {
				l = a.RWMutex("rw2").Write()
			}
			_, unlock, err := l.Lock(context.Background())
			require.NoError(t, err, kind)
			unlocks[kind] = unlock
		}
		require.NoError(t, permits(a).Acquire(t.Context(), 1))
		permit := async(func() error { return permits(b).Acquire(context.Background(), 1) })
		for kind, l := range handles(b) {
			waits[kind] = lockAsync(t, l)
		}
		redistest.Eventually(t, testTimeout, func() bool { return warnings() == n }, "it is logged")
		for kind, unlock := range unlocks {
			require.NoError(t, unlock(), kind)
		}
		require.NoError(t, permits(a).Release(t.Context(), 1))
		for kind, wait := range waits {
			got := wait.get(t, testTimeout)
			require.NoError(t, got.err, kind)
			require.NoError(t, got.unlock(), kind)
		}
		require.NoError(t, within(t, permit, testTimeout))
		require.NoError(t, permits(b).Release(t.Context(), 1))
		require.Equal(t, n, warnings())
	}
	round(1)
	require.NoError(t, admin.do(t, "CONFIG", "SET", "maxclients", "10000").Error())
	_, unlock := enter(t, context.Background(), a.Mutex("order:42"))
	wait := lockAsync(t, b.Mutex("order:42"))
	connection := func() string { // for messages, if there is one
		for client := range strings.Lines(answer(admin.do(t, "CLIENT", "LIST").ToString()).ok(t)) {
			if strings.Contains(client, "name=rlock:") { // which it gets when it has subscribed
				id, _, _ := strings.Cut(strings.TrimPrefix(client, "id="), " ")
				return id
			}
		}
		return ""
	}
	redistest.Eventually(t, testTimeout, func() bool { return connection() != "" }, "it is subscribed")
	require.NoError(t, unlock())
	wait.getAndUnlock(t, testTimeout)
	redistest.Eventually(t, testTimeout, func() bool {
		return len(answer(admin.do(t, "PUBSUB", "CHANNELS").AsStrSlice()).ok(t)) == 0
	}, "nobody needs that connection")
	require.NoError(t, admin.do(t, "CLIENT", "KILL", "ID", connection()).Error()) // otherwise it stays for five seconds
	redistest.Eventually(t, testTimeout, func() bool { return connection() == "" }, "it is gone")
	round(2)
}

// G4: the same with a connection for messages on which nothing is answered. It does not sleep through an unlock until that fails, after ten
// seconds.
func TestWaitersWithASilentConnection(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		for name, mod := range map[string]func(*rueidis.ClientOption){
			"RESP3": protocol(false), "RESP2": protocol(true),
		} {
			c, proxy, b := behindProxy(t, mod)
			proxy.OnRequest(redistest.Each("SUBSCRIBE", redistest.Drop))
			_, unlock := enter(t, context.Background(), b.Mutex(name))
			waiter := lockAsync(t, c.Mutex(name))
			sleep(5 * time.Second)
			waiter.stillWaits(t)
			began := time.Now()
			require.NoError(t, unlock())
			got := waiter.gets(t, testTimeout)
			require.LessOrEqual(t, redistest.Ran(t, began, got.at), 2*time.Second, name)
			require.NoError(t, got.unlock())
		}
	})
}

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

// G4: a release wakes a waiter that the server does not count, also one without a place in line, as Redisson's.
func TestPermitsWhereListenersAreNotCounted(t *testing.T) {
	redistest.Parallel(t)
	master, replica := redistest.StartPair(t)
	b := fixture{rdb: master.Client(t)}
	for kind, of := range map[string]func(c *rlock.Client, name string) rlock.Locker{
		"semaphore": func(c *rlock.Client, n string) rlock.Locker { return c.Semaphore(n).Locker(1) },
		"permits":   func(c *rlock.Client, n string) rlock.Locker { return c.PermitSemaphore(n).Locker(1) },
	} {
		for place, most := range map[string]int{"in line": 0, "outside": -1} {
			b.name = kind + " " + place
			holds, elsewhere := newClient(t, b.rdb), redistest.Split{Client: master.Client(t), Messages: replica.Client(t)}
			permits(t, holds.Semaphore(b.name), 1)
			_, unlock := enter(t, context.Background(), of(holds, b.name))
			before := redistest.Commands(t, b.rdb)["evalsha"]
			waits := lockAsync(t, of(newClient(t, elsewhere, rlock.Options{HandOff: rlock.HandOff{Most: most}}), b.name))
			asked := func() bool { return redistest.Commands(t, b.rdb)["evalsha"] == before+2 }
			redistest.Eventually(t, testTimeout, asked, "it was refused, subscribed, and was refused again")
			require.NoError(t, unlock())
			waits.getAndUnlock(t, wakeTimeout)
		}
	}
}

// A killed process that the server counted costs nothing; one that it did not count costs a grant lease, once.
func TestDeadWhereListenersAreNotCounted(t *testing.T) {
	redistest.Parallel(t)
	master, replica := redistest.StartPair(t)
	b := fixture{rdb: master.Client(t), name: "job"}
	_, unlock := enter(t, context.Background(), newHastyClient(t, b.rdb).Mutex(b.name))
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
	unlock = redistest.Within(t, 20*time.Second, inside, "the waiter behind a dead process is in, whose timer ends with the lease, 30 s")
	answer(b.do(t, "ZCARD", "rlock_queue:{job}").AsInt64()).is(t, 0, "the dead one has lost its place")
	require.NoError(t, unlock())
	require.NoError(t, (<-inside)())
}
