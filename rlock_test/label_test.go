package rlock_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// labelKey is where a Client keeps its label.
func labelKey(c *rlock.Client) string { return "rlock_client:{" + c.ID()[:18] + "}" }

// awaitLabel waits until the label of c is in Redis.
func (b fixture) awaitLabel(t testing.TB, c *rlock.Client, label string) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool {
		text, err := b.do(t, "GET", labelKey(c)).ToString()
		return err == nil && text == label
	}, "the label is written")
}

// refusalOf is the error of a TryLock.
func refusalOf(t testing.TB, l rlock.Locker, wait time.Duration) *rlock.NotAcquiredError {
	t.Helper()
	_, _, err := l.TryLock(context.Background(), wait)
	var not *rlock.NotAcquiredError
	require.ErrorAs(t, err, &not)
	return not
}

// knowsLabel waits until a refused TryLock names that label: the first refusal has it looked up.
func knowsLabel(t testing.TB, l rlock.Locker, wait time.Duration, label string) (not *rlock.NotAcquiredError) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool {
		not = refusalOf(t, l, wait)
		return not.HolderLabel == label
	}, "the label is known")
	return not
}

// A refusal names the label of the holder, once this process has learned it. A second waiter in the same process learns it without a command.
func TestLabel(t *testing.T) {
	handles := maps.Clone(lockHandles)
	handles["write"] = func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Write() }
	handles["upgrades"] = func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Upgradeable() }
	for kind, of := range handles {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			b := newFixture(t, rlock.Options{Label: `pod "7"`})
			a := locked(t, of(b.Client, b.name))
			b.awaitLabel(t, b.Client, `pod "7"`)
			for _, wait := range []time.Duration{0, 300 * time.Millisecond} {
				not := knowsLabel(t, of(newClient(t, b.rdb), b.name), wait, `pod "7"`)
				require.Contains(t, not.Error(), `held by "pod \"7\"" (`+not.Holder+`), with `)
				require.NotContains(t, not.Error(), "\n")
			}
			if m, ok := of(newClient(t, b.rdb), b.name).(*rlock.Mutex); ok {
				want := []rlock.Holder{{Owner: rlock.Owner(a.ctx), Depth: 1, Label: `pod "7"`, Write: kind == "write"}}
				redistest.Eventually(t, testTimeout, func() bool {
					info, err := m.Info(t.Context())
					return err == nil && slices.Equal(want, info.Holders)
				}, "the label is known")
			}
			require.NoError(t, a.unlock())
			b.Close()
			require.False(t, b.exists(t, labelKey(b.Client)), "G9")
		})
	}
}

// With several readers, Info has the label of each. A Client that is refused by its own hold says so.
func TestLabelsOfSeveral(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{Label: "pod-1"})
		second := newClient(t, b.rdb, rlock.Options{Label: "pod-2"})
		third := newClient(t, b.rdb)
		all := []*rlock.Client{b.Client, second, third}
		for _, c := range all {
			a := locked(t, c.RWMutex(b.name).Read())
			t.Cleanup(func() { require.NoError(t, a.unlock()) })
		}
		b.awaitLabel(t, b.Client, "pod-1")
		b.awaitLabel(t, second, "pod-2")
		for _, c := range all {
			want := map[string]string{b.ID(): "pod-1", second.ID(): "pod-2", third.ID(): ""}
			redistest.Eventually(t, testTimeout, func() bool {
				info, err := c.RWMutex(b.name).Read().Info(t.Context())
				labels := make(map[string]string)
				for _, h := range info.Holders {
					labels[strings.Split(h.Owner, ":")[0]] = h.Label
				}
				return err == nil && maps.Equal(want, labels)
			}, "the labels are known")
		}
		_, unlock := enter(t, context.Background(), b.Mutex(b.name+"own"))
		not := refusalOf(t, b.Mutex(b.name+"own"), 0) // with the same ctx
		require.Equal(t, "pod-1", not.HolderLabel)
		require.Contains(t, not.Error(), "held by this client as "+not.Holder)
		require.NoError(t, unlock())
	})
}

// All calls refused by the same Client share one command, whatever the locks. Holders without a label cost none, and a waiting Lock sends
// none.
func TestLabelCosts(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		watch := fixture{rdb: s.Client(t)}
		loadScripts(t, newClient(t, s.Client(t)))
		far := newMeter(t, s.Addr())
		labelled := newClient(t, s.Client(t), rlock.Options{WatchdogTimeout: time.Hour, Label: "pod-7"})
		plain := newClient(t, s.Client(t), seldom)
		waits := newClient(t, redistest.Dial(t, far.addr, redistest.Single), seldom)
		for i := range 5 {
			for _, c := range []*rlock.Client{labelled, plain} {
				a := locked(t, c.Mutex(fmt.Sprint(c == plain, i)))
				t.Cleanup(func() { require.NoError(t, a.unlock()) })
			}
		}
		watch.awaitLabel(t, labelled, "pod-7")
		gets := func() int64 { return redistest.Commands(t, watch.rdb)["get"] }
		before := gets()
		for i := range 5 {
			require.Empty(t, refusalOf(t, waits.Mutex(fmt.Sprint(true, i)), 0).HolderLabel)
		}
		require.Equal(t, before, gets())
		knowsLabel(t, waits.Mutex("false 0"), 0, "pod-7")
		asked := far.since(traffic{})
		for i := range 5 {
			require.Equal(t, "pod-7", refusalOf(t, waits.Mutex(fmt.Sprint(false, i)), 0).HolderLabel)
		}
		require.Equal(t, 5, far.since(asked).commands)
		require.Equal(t, before+1, gets())
		var waiters []pendingLock
		for i := range 20 {
			waiters = append(waiters, lockAsync(t, waits.Mutex(fmt.Sprint(false, i%5))))
		}
		redistest.Eventually(t, testTimeout, func() bool { return waits.Stats().Waiting == 20 && exists(t, watch.rdb, "rlock_queue:{false 4}") }, "they wait")
		require.Equal(t, before+1, gets())
		for _, w := range waiters {
			w.cancel()
			require.ErrorIs(t, w.get(t, testTimeout).err, context.Canceled)
		}

		// What a label costs its own Client: a SET at first, and longer owners.
		costs := func(o rlock.Options) (begins, pairs traffic) {
			near := newMeter(t, s.Addr())
			o.WatchdogTimeout = time.Hour
			m := newClient(t, redistest.Dial(t, near.addr, redistest.Single), o).Mutex("costs")
			lockAndUnlock(t, m)
			if o.Label != "" {
				redistest.Eventually(t, testTimeout, func() bool { return near.since(traffic{}).commands == 3 }, "the label")
			}
			begins = near.since(traffic{})
			for range 100 {
				lockAndUnlock(t, m)
			}
			return begins, near.since(begins)
		}
		noneBegins, none := costs(rlock.Options{})
		begins, some := costs(rlock.Options{Label: "pod-7"})
		t.Logf("none: %+v, %+v; with a label: %+v, %+v", noneBegins, none, begins, some)
		require.Equal(t, noneBegins.commands+1, begins.commands)
		require.Equal(t, 200, none.commands)
		require.Equal(t, 200, some.commands)
		require.Less(t, some.bytes-none.bytes, 200*20)
	})
}

// A label is renewed, also after it was lost, until its Client is closed or dies.
func TestLabelLives(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newBareFixture(t)
		proxy := redistest.StartProxy(t, redistest.Shared(t))
		c := newClient(t, redistest.Dial(t, proxy.Addr()), rlock.Options{WatchdogTimeout: rlock.MinWatchdogTimeout, Label: "pod-7"})
		key := labelKey(c)
		require.False(t, b.exists(t, key), "nobody has asked for a lock")
		lockAndUnlock(t, c.Mutex(b.name, rlock.WithLease(testTimeout)))
		b.awaitLabel(t, c, "pod-7")
		require.LessOrEqual(t, b.pttl(t, key), 3*time.Second)
		require.NoError(t, b.do(t, "PEXPIRE", key, "1500").Error())
		redistest.Eventually(t, testTimeout, func() bool { return b.pttl(t, key) > 2*time.Second }, "renewed")
		require.NoError(t, b.do(t, "DEL", key).Error())
		b.awaitLabel(t, c, "pod-7")

		var sets atomic.Int64
		proxy.OnRequest(func(words []string) redistest.Action {
			if words[0] != "SET" || sets.Add(1) > 2 {
				return redistest.Pass
			}
			return redistest.Fail("LOADING it comes")
		})
		redistest.Eventually(t, testTimeout, func() bool { return sets.Load() == 2 }, "it was not renewed")
		redistest.Eventually(t, testTimeout, func() bool { return sets.Load() >= 3 && b.pttl(t, key) > 2*time.Second }, "it is tried again")

		proxy.BlackHole(true) // as if the process had died
		redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, key) }, "it expires")
	})
}

// Shutdown deletes the label, even while the last write of it is under way.
func TestLabelEndsWithShutdown(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newBareFixture(t)
		for range 20 {
			c := newClient(t, b.rdb, rlock.Options{Label: "pod-7"})
			lockAndUnlock(t, c.Mutex(b.name))
			require.NoError(t, c.Shutdown(t.Context()))
			require.False(t, b.exists(t, labelKey(c)))
		}
	})
}

// A value that others wrote to the key of a label is no label.
func TestLabelOfOthers(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newBareFixture(t)
		holder := newClient(t, b.rdb, rlock.Options{Label: "pod-8"})
		for _, text := range []string{"", "two\nlines", strings.Repeat("x", 101), "\xff"} {
			a := locked(t, holder.Mutex(b.name))
			b.awaitLabel(t, holder, "pod-8")
			require.NoError(t, b.do(t, "SET", labelKey(holder), text).Error())
			not := refusalOf(t, newClient(t, b.rdb).Mutex(b.name), 0)
			require.Empty(t, not.HolderLabel)
			require.Contains(t, not.Error(), "held by "+not.Holder+", with ")
			require.NoError(t, b.do(t, "SET", labelKey(holder), "pod-8").Error())
			require.NoError(t, a.unlock())
		}
	})
}

// A label is found wherever Redis is: on a cluster in a slot of its own.
func TestLabelOnDeployments(t *testing.T) {
	onDeployments(t, func(t *testing.T, rdb rueidis.Client, plain rlock.Options) {
		b := fixture{rdb: rdb, name: redistest.Name(t)}
		o := plain
		o.Label = "pod-7"
		for i := range 3 {
			c := newClient(t, rdb, o)
			key := fmt.Sprint(b.name, i)
			a := locked(t, c.Mutex(key))
			b.awaitLabel(t, c, "pod-7")
			knowsLabel(t, newClient(t, rdb, plain).Mutex(key), 0, "pod-7")
			knowsLabel(t, newClient(t, rdb, o).Mutex(key), 100*time.Millisecond, "pod-7")
			require.NoError(t, a.unlock())
			c.Close()
			require.False(t, b.exists(t, labelKey(c)))
		}
	})
}

// Each server of a quorum has the label of its own Client; a refusal names that of the server that refused.
func TestLabelOfAQuorum(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		var holders, others []rlock.Locker
		var servers []fixture
		for i := range 3 {
			b := fixture{rdb: redistest.Start(t).Client(t)}
			b.Client = newClient(t, b.rdb, rlock.Options{Label: fmt.Sprint("pod-", i)})
			servers = append(servers, b)
			holders = append(holders, b.Mutex("q"))
			others = append(others, newClient(t, b.rdb).Mutex("q"))
		}
		a := locked(t, rlock.Quorum(holders...))
		for i, b := range servers {
			b.awaitLabel(t, b.Client, fmt.Sprint("pod-", i))
		}
		refusedBy := func(members []rlock.Locker, wait time.Duration) {
			t.Helper()
			var not *rlock.NotAcquiredError
			redistest.Eventually(t, testTimeout, func() bool {
				not = refusalOf(t, rlock.Quorum(members...), wait)
				return not.HolderLabel != ""
			}, "the label is known")
			at := slices.IndexFunc(servers, func(b fixture) bool { return strings.HasPrefix(not.Holder, b.ID()) })
			require.Equal(t, fmt.Sprint("pod-", at), not.HolderLabel)
		}
		refusedBy(others, 0)
		refusedBy(others, 300*time.Millisecond)
		refusedBy(holders, 0) // itself
		require.NoError(t, a.unlock())
	})
}

// A victim of a deadlock names the labels of the others, also from other processes.
func TestLabelsInADeadlock(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newBareFixture(t)
		w := newWaits()
		parties := make([]party, 3)
		for i := range parties {
			o := failAfter(300 * time.Millisecond)
			o.Trace, o.Label = w.trace(), fmt.Sprint("pod-", i)
			c := elsewhere(t, b.rdb, o)
			parties[i] = party{c.Mutex(fmt.Sprint(b.name, i)), c.Mutex(fmt.Sprint(b.name, (i+1)%len(parties)))}
		}
		e := victimOf(t, circle(t, parties, func(int) {
			w.next(t)
			sleep(time.Millisecond) // the victim is the one that has waited least
		}))
		for i, at := range e.Cycle { // the victim, which is the last, is first
			require.Equal(t, fmt.Sprint("pod-", (i+2)%3), at.Label)
			require.Contains(t, e.Error(), fmt.Sprintf("%q on %s (pid ", at.Label, at.Host))
		}
	})
}

// keepsGets is a client whose answers to GET are kept.
type keepsGets struct {
	rueidis.Client

	asked, goOn chan struct{}
}

func (c keepsGets) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if cmd.Commands()[0] == "GET" {
		c.asked <- struct{}{}
		<-c.goOn
	}
	return c.Client.Do(ctx, cmd)
}

// Nobody waits for a label that is not answered: neither a TryLock, nor a Lock.
func TestLabelUnanswered(t *testing.T) {
	redistest.OnlyVirtual(t, "that it is not asked for again can be seen only there", func(t *testing.T) {
		b := newFixture(t, rlock.Options{Label: "pod-7"})
		a := locked(t, b.Mutex(b.name))
		b.awaitLabel(t, b.Client, "pod-7")
		keeps := keepsGets{b.rdb, make(chan struct{}, 10), make(chan struct{})}
		goOn := sync.OnceFunc(func() { close(keeps.goOn) })
		t.Cleanup(goOn)

		first := newClient(t, keeps)
		for range 2 {
			began := time.Now()
			require.Empty(t, refusalOf(t, first.Mutex(b.name), 0).HolderLabel)
			requireTookAtMost(t, soon, began, time.Now())
		}
		<-keeps.asked
		redistest.Settle(t)
		require.Empty(t, keeps.asked, "it is not asked for again")

		waiter := lockAsync(t, newClient(t, keeps).Mutex(b.name))
		<-keeps.asked
		require.NoError(t, a.unlock())
		waiter.getAndUnlock(t, testTimeout)
		goOn()
	})
}

// Users without the right to the keys lock as before, and their Clients say so once.
func TestLabelForbidden(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t)
	admin := fixture{rdb: s.Client(t)}
	for what, keys := range map[string]string{"write": "%R~rlock_client:*", "read or write": "~other"} {
		t.Run(what, func(t *testing.T) {
			redistest.Parallel(t)
			name := strings.ReplaceAll(what, " ", "-")
			require.NoError(t, admin.do(t, "ACL", "SETUSER", name, "reset", "on", ">secret", "&*", "+@all", "~"+name, "~rlock_queue:*", keys).Error())
			j := new(lockedBuffer)
			rdb := s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = name, "secret" })
			o := rlock.Options{Label: "pod-7", Logger: slog.New(slog.NewTextHandler(j, nil))}
			c, other := newClient(t, rdb, o), newClient(t, s.Client(t), rlock.Options{Label: "pod-8"})
			lockAndUnlock(t, c.Mutex(name))
			redistest.Eventually(t, testTimeout, func() bool { return strings.Count(j.String(), "labels do not work for this Client") == 1 }, "logged")
			require.Equal(t, 1, strings.Count(j.String(), "label=pod-7"))
			a := locked(t, c.Mutex(name))
			require.Less(t, len(rlock.Owner(a.ctx)), 36+1+20, "no mark")
			require.Empty(t, refusalOf(t, other.Mutex(name), 0).HolderLabel)
			require.NoError(t, a.unlock())

			a = locked(t, other.Mutex(name))
			admin.awaitLabel(t, other, "pod-8")
			want := ""
			if what == "write" {
				want = "pod-8"
			}
			knowsLabel(t, c.Mutex(name), 0, want)
			require.Equal(t, want, refusalOf(t, c.Mutex(name), 0).HolderLabel)
			require.NoError(t, a.unlock())
			require.Equal(t, 1, strings.Count(j.String(), "labels do not work"))
		})
	}
}
