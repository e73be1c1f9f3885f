package rlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// If a call of a waiter or its reply is lost, the order stays and no key is left.
func TestFairLostCalls(t *testing.T) {
	const acquire, release, refresh = 13, 12, 11 // length of these calls with one place, in words
	for _, words := range []int{acquire, release, refresh} {
		for _, reply := range []bool{false, true} {
			for n := 1; n <= 2; n++ {
				redistest.RunVirtual(t, fmt.Sprintf("%d words, reply=%t, %d", words, reply, n), func(t *testing.T) {
					b, s := fairStandalone(t, 2, rlock.Options{})
					proxy := redistest.StartProxy(t, s.Addr())
					b.processes = append(b.processes, newClient(t, s.Client(t, redistest.Via(proxy)), rlock.Options{}))
					require.NoError(t, b.processes[2].FairMutex("other").Do(context.Background(), func(context.Context) error { return nil }))
					seen, lost := 0, make(chan struct{})
					hook := func(cmd []string) redistest.Action {
						if len(cmd) != words || cmd[0] != "EVALSHA" || cmd[3] != b.name {
							return redistest.Pass
						}
						if seen++; seen != n {
							return redistest.Pass
						}
						close(lost)
						return redistest.Cut
					}
					on := proxy.OnRequest
					if reply {
						on = proxy.OnReply
					}
					on(hook)
					unlock := b.lock(0)
					b.wait(context.Background(), 0, "0")
					for range n { // process 2 releases twice
						b.wait(context.Background(), 2, strconv.Itoa(b.expected))
					}
					b.wait(context.Background(), 1, strconv.Itoa(b.expected))
					if words == refresh && n == 1 {
						<-lost
						require.Len(t, b.queue(), 3)
					}
					require.NoError(t, unlock())
					b.requireOrder([]string{"0", "1", "2", "3"}[:2+n]...)
					if words != refresh {
						<-lost
					}
				})
			}
		}
	}
}

// If the message of a hand-over is lost, the waiter notices that its place is gone, asks Redis, and finds that it has the lock.
func TestFairGrantMessageLost(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b, s := fairStandalone(t, 1, rlock.Options{})
		proxy := redistest.StartProxy(t, s.Addr())
		b.processes = append(b.processes, newClient(t, s.Client(t, redistest.Via(proxy)), rlock.Options{}))
		unlock := b.lock(0)
		b.wait(context.Background(), 1, "1")
		b.wait(context.Background(), 0, "2")
		proxy.OnReply(redistest.Each("MESSAGE", redistest.Drop))
		began := time.Now()
		require.NoError(t, unlock())
		require.Equal(t, "1", <-b.in, "the waiter enters within the grant lease")
		require.Less(t, time.Since(began), 2*time.Second+soon)
		b.requireOrder("2")
	})
}

// Waiters whose pub/sub connection is down are skipped. Once they are connected again, they join the queue with new owners.
func TestFairConnectionLost(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b, s := fairStandalone(t, 1, rlock.Options{})
		proxy := redistest.StartProxy(t, s.Addr())
		b.processes = append(b.processes, newClient(t, s.Client(t, redistest.Via(proxy)), rlock.Options{}))
		unlock := b.lock(0)
		b.wait(context.Background(), 1, "1")
		b.wait(context.Background(), 0, "2")
		b.wait(context.Background(), 1, "3")
		proxy.Refuse(true)
		proxy.CutAll()
		redistest.Eventually(t, testTimeout, func() bool {
			n, err := b.rdb.Do(context.Background(), b.rdb.B().PubsubNumsub().Channel("redisson_lock__channel:{"+b.name+"}").Build()).ToArray()
			if err != nil {
				return false
			}
			listen, _ := n[1].AsInt64()
			return listen == 1
		}, "the server has noticed the lost connection")
		require.NoError(t, unlock())
		require.Equal(t, "2", <-b.in)
		proxy.Refuse(false)
		rest := []string{<-b.in, <-b.in}
		slices.Sort(rest)
		require.Equal(t, []string{"1", "3"}, rest)
		b.requireNothingLeft()
	})
}

// The order also holds on a cluster, with sharded and with plain pub/sub.
func TestFairOnACluster(t *testing.T) {
	redistest.Parallel(t)
	c := redistest.StartCluster(t, 3, 0)
	for _, plain := range []bool{false, true} {
		t.Run(map[bool]string{false: "sharded", true: "plain"}[plain], func(t *testing.T) {
			b := newFairFixture(t, c.Client(t), func() rueidis.Client { return c.Client(t) }, 3, rlock.Options{PlainPubSub: plain})
			unlock := b.lock(0)
			var want []string
			for i := range 12 {
				b.wait(context.Background(), i%3, strconv.Itoa(i))
				want = append(want, strconv.Itoa(i))
			}
			began := time.Now()
			require.NoError(t, unlock())
			b.requireOrder(want...)
			require.Less(t, time.Since(began), 10*time.Second, "waiters are woken; polling would take each of them more than a second")

			_, _, err := b.processes[0].FairMutex("a{}b").Lock(context.Background())
			require.ErrorContains(t, err, `rlock: "a{}b": on a cluster the name of such a lock may have braces only around what is hashed`)
		})
	}
}

// With Options.Replicas, which disables hand-overs, the order is the same.
func TestFairWithReplicas(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.StartSentinel(t)
	o := rlock.Options{Replicas: 1, ReplicaTimeout: 10 * time.Second}
	b := newFairFixture(t, s.Client(t), func() rueidis.Client { return s.Client(t) }, 2, o)
	unlock := b.lock(0)
	b.wait(context.Background(), 1, "0")
	b.wait(context.Background(), 0, "1")
	b.wait(context.Background(), 1, "2")
	require.NoError(t, unlock())
	b.requireOrder("0", "1", "2")
}

// Goroutines of several processes lock, wait and give up at random while connections are cut. There is one holder at a time, and no
// key is left.
func TestFairCancelsAndCuts(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b, s := fairStandalone(t, 1, rlock.Options{})
		proxy := redistest.StartProxy(t, s.Addr())
		for range 2 {
			b.processes = append(b.processes, newClient(t, s.Client(t, redistest.Via(proxy)), rlock.Options{}))
		}
		proxy.Delay(100 * time.Microsecond)
		end := time.Now().Add(100 * time.Millisecond)
		var inside, sections, cancelled atomic.Int64
		goesOn := func() bool { return time.Now().Before(end) || sections.Load() <= 20 }
		for i := range 6 {
			b.running.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(i), 0))
				for goesOn() {
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+rnd.IntN(20))*time.Millisecond)
					err := b.processes[i%3].FairMutex(b.name).Do(ctx, func(ctx context.Context) error {
						if n := inside.Add(1); ctx.Err() == nil {
							assert.EqualValues(t, 1, n, "goroutines inside")
						}
						sections.Add(1)
						sleep(rand.N(2 * time.Millisecond))
						inside.Add(-1)
						return nil
					})
					cancel()
					if err != nil {
						cancelled.Add(1)
					}
				}
			})
		}
		for goesOn() {
			sleep(rand.N(20 * time.Millisecond))
			proxy.CutAll()
		}
		b.running.Wait()
		t.Logf("%d sections, %d failed", sections.Load(), cancelled.Load())
		list, times := b.keys()
		redistest.Eventually(t, 20*time.Second, func() bool {
			n, err := b.do("EXISTS", b.name, list, times).AsInt64()
			return err == nil && n == 0
		}, "no key is left")
		for i := range b.processes {
			require.NoError(t, b.lock(i)())
		}
		b.requireNothingLeft()
	})
}

// The ACL rights in docs/protocol.md are enough. Without one of them, Lock returns an error that says so.
func TestFairRights(t *testing.T) {
	redistest.Parallel(t)
	b, s := fairStandalone(t, 1, rlock.Options{})
	user := func(rules ...string) *rlock.Client {
		b.do(append([]string{"ACL", "SETUSER", "app", "reset", "resetchannels", "on", ">secret", "+@connection"}, rules...)...)
		c := s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password, o.DisableCache = "app", "secret", true })
		return newClient(t, c, rlock.Options{})
	}
	rights := []string{
		"~" + b.name, "~redisson_lock_queue:*", "~redisson_lock_timeout:*", "&redisson_lock__channel:*",
		"+evalsha", "+eval", "+del", "+hdel", "+hexists", "+hget", "+hincrby", "+hrandfield", "+hset", "+pexpire", "+pttl", "+publish",
		"+subscribe", "+unsubscribe", "+ping",
		"+exists", "+lindex", "+llen", "+lpop", "+lpos", "+lrange", "+lrem", "+rpush", "+time", "+zadd", "+zcard", "+zrem", "+zscore",
	}
	b.processes = append(b.processes, user(rights...))
	unlock := b.lock(1)
	b.do("RPUSH", "redisson_lock_queue:{"+b.name+"}", foreignOwner) // a waiter of Redisson, which makes ours need its own channel
	b.expected = 1
	b.wait(context.Background(), 1, "1")
	b.wait(context.Background(), 0, "2")
	require.NoError(t, unlock())
	list, times := b.keys()
	b.do("LREM", list, "0", foreignOwner) // Redisson's waiter gives up
	b.do("ZREM", times, foreignOwner)
	b.requireOrder("1", "2")

	unlock = b.lock(0)
	waits := func(rules ...string) error {
		_, _, err := user(rules...).FairMutex(b.name).TryLock(context.Background(), testTimeout)
		return err
	}
	require.ErrorContains(t, waits("~"+b.name, "&*", "+@all"), "NOPERM")
	require.ErrorContains(t, waits(append(slices.Clone(rights), "-rpush")...), "acquire script: ")
	require.ErrorContains(t, waits("~*", "+@all", "&redisson_lock__channel:{"+b.name+"}"), "the server refuses it")
	require.NoError(t, unlock())
}

// A grant whose message arrives after its lease has ended is ignored, even though the process saw its place in the queue while it
// waited (I5, G1).
func TestFairLateGrant(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b, s := fairStandalone(t, 1, rlock.Options{})
		proxy := redistest.StartProxy(t, s.Addr())
		b.processes = append(b.processes, newClient(t, s.Client(t, redistest.Via(proxy)), rlock.Options{}))
		refreshed := make(chan struct{}, 100)
		var late atomic.Bool // delays the messages to this process, and its refreshes
		hold := func(cmd []string) redistest.Action {
			isRefresh := len(cmd) == 11 && strings.HasPrefix(cmd[0], "EVAL")
			if isRefresh {
				refreshed <- struct{}{}
			}
			if late.Load() && (isRefresh || cmd[0] == "MESSAGE") {
				return redistest.Hold
			}
			return redistest.Pass
		}
		proxy.OnRequest(hold)
		proxy.OnReply(hold)
		unlock := b.lock(0)
		b.wait(context.Background(), 1, "late")
		for range 4 { // requests and replies; after them the place has been known for longer than a grant lease
			<-refreshed
		}
		late.Store(true)

		next := make(chan rlock.UnlockFunc)
		b.running.Go(func() {
			_, unlock, err := b.processes[0].FairMutex(b.name).Lock(context.Background())
			assert.NoError(t, err)
			next <- unlock
		})
		b.awaitQueue(2)
		require.NoError(t, unlock())
		unlock = <-next // after the grant lease
		require.Empty(t, b.in)
		late.Store(false)
		proxy.Release()
		b.awaitQueue(1) // the waiter has asked and waits again
		require.Empty(t, b.in)
		require.NoError(t, unlock())
		b.requireOrder("late")
	})
}

// The grant, on its own connection, may arrive before the reply that the waiter joined the queue behind Redisson. The waiter gets
// the lock, and its process keeps working.
func TestFairGrantBeforeTheAnswer(t *testing.T) {
	for name, waitsBefore := range map[string]bool{"unlock": true, "force": false} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b, s := fairStandalone(t, 1, rlock.Options{})
			proxy := redistest.StartProxy(t, s.Addr())
			b.processes = append(b.processes, newClient(t, s.Client(t, redistest.Via(proxy)), rlock.Options{}))
			b.do("HSET", b.name, foreignOwner, "1")
			b.do("PEXPIRE", b.name, "60000")
			channel := "redisson_lock__channel:{" + b.name + "}"
			var want []string
			if waitsBefore {
				b.wait(context.Background(), 0, "first")
				want = append(want, "first")
			}

			messages := make(chan string, 10)
			proxy.OnReply(func(cmd []string) redistest.Action {
				switch {
				case cmd[0] == "MESSAGE" && cmd[1] != channel, cmd[0] == "MESSAGE" && cmd[2] == "after":
					messages <- cmd[2]
				case len(cmd) == 13 && cmd[0] == "EVALSHA" && cmd[8] == "1": // joins the queue
					return redistest.Hold
				}
				return redistest.Pass
			})
			b.wait(context.Background(), 1, "late")
			if waitsBefore {
				b.do("DEL", b.name) // the unlock of Redisson
				b.do("PUBLISH", channel, "0")
			} else {
				held, err := b.processes[0].FairMutex(b.name).ForceUnlock(context.Background())
				require.NoError(t, err)
				require.True(t, held)
			}
			require.Contains(t, <-messages, " 2000 0 -")
			b.do("PUBLISH", channel, "after")
			require.Equal(t, "after", <-messages) // the process has received the grant
			proxy.OnReply(func([]string) redistest.Action { return redistest.Pass })
			proxy.Release()
			b.requireOrder(append(want, "late")...)
			for i := range b.processes {
				require.NoError(t, b.lock(i)())
			}
			b.requireNothingLeft()
		})
	}
}
