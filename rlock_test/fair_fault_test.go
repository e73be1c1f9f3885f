package rlock_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// If a call of a waiter or its reply is lost, the order stays and no key is left.
func TestFairLostCalls(t *testing.T) {
	const acquire, release, refresh = 13, 12, 11 // length of these calls with one place, in words
	for _, words := range []int{acquire, release, refresh} {
		for leg := range legs {
			for n := 1; n <= 2; n++ {
				redistest.RunVirtual(t, fmt.Sprintf("%d words, %s %d", words, leg, n), func(t *testing.T) {
					b, proxy := fairProxied(t, 2)
					lockAndUnlock(t, b.processes[2].FairMutex("other")) // loads the scripts
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
					legs[leg](proxy, hook)
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
		b, proxy := fairProxied(t, 1)
		unlock := b.lock(0)
		b.wait(context.Background(), 1, "1")
		b.wait(context.Background(), 0, "2")
		proxy.OnReply(redistest.Each("MESSAGE", redistest.Drop))
		began := time.Now()
		require.NoError(t, unlock())
		b.requireEntered("1")
		requireTookAtMost(t, 2*time.Second, began, time.Now()) // the grant lease
		b.requireOrder("2")
	})
}

// Waiters whose pub/sub connection is down are skipped. Once they are connected again, they join the queue with new owners.
func TestFairConnectionLost(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b, proxy := fairProxied(t, 1)
		unlock := b.lock(0)
		b.wait(context.Background(), 1, "1")
		b.wait(context.Background(), 0, "2")
		b.wait(context.Background(), 1, "3")
		proxy.Refuse(true)
		proxy.CutAll()
		fixture{rdb: b.rdb}.awaitSubscribers(t, b.name, 1) // the server has noticed the lost connection
		require.NoError(t, unlock())
		b.requireEntered("2")
		proxy.Refuse(false)
		rest := []string{<-b.in, <-b.in}
		slices.Sort(rest)
		require.Equal(t, []string{"1", "3"}, rest)
		b.requireNothingLeft()
	})
}

// The ACL rights in docs/internals/protocol.md are enough. Without one of them, Lock returns an error that says so.
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
		b, proxy := fairProxied(t, 1)
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

		next := lockAsync(t, b.processes[0].FairMutex(b.name))
		b.awaitQueue(2)
		require.NoError(t, unlock())
		got := next.gets(t, testTimeout) // after the grant lease
		require.Empty(t, b.in)
		late.Store(false)
		proxy.Release()
		b.awaitQueue(1) // the waiter has asked and waits again
		require.Empty(t, b.in)
		require.NoError(t, got.unlock())
		b.requireOrder("late")
	})
}

// The grant, on its own connection, may arrive before the reply that the waiter joined the queue behind Redisson. The waiter gets
// the lock, and its process keeps working.
func TestFairGrantBeforeTheAnswer(t *testing.T) {
	for name, waitsBefore := range map[string]bool{"unlock": true, "force": false} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b, proxy := fairProxied(t, 1)
			b.heldByAnother()
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
				answer(b.processes[0].FairMutex(b.name).ForceUnlock(context.Background())).is(t, true)
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
