//go:build interop

package rlock_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// fairWorld runs tests with actors that lock fair locks.
type fairWorld struct{ *world }

func fairly(s sides) sides {
	wrap := func(of func() actor) func() actor {
		return func() actor {
			switch a := of().(type) {
			case *goActor:
				return &fairGo{goActor: a}
			default:
				return &fairJava{javaThread: a.(*javaThread)}
			}
		}
	}
	return sides{s.way, wrap(s.holder), wrap(s.waiter)}
}

func (w *fairWorld) bothWays(t *testing.T, name string, test func(*testing.T, sides)) {
	t.Helper()
	w.world.bothWays(t, name, func(t *testing.T, s sides) { test(t, fairly(s)) })
}

func (w *fairWorld) quickly(t *testing.T, name string, test func(*testing.T, sides)) {
	t.Helper()
	w.world.quickly(t, name, func(t *testing.T, s sides) { test(t, fairly(s)) })
}

type fairGo struct{ *goActor }

func (g *fairGo) start(t testing.TB, name string, lease time.Duration) <-chan event {
	var o []rlock.Option
	if lease > 0 {
		o = append(o, rlock.WithLease(lease))
	}
	return g.startOn(t, g.client.FairMutex(name, o...))
}

func (g *fairGo) tryInVain(t testing.TB, name string) {
	t.Helper()
	_, _, err := g.client.FairMutex(name).TryLock(g.ctx(), 0)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
}

func (g *fairGo) force(t testing.TB, name string) event {
	t.Helper()
	began := time.Now()
	was, err := g.client.FairMutex(name).ForceUnlock(g.ctx())
	require.True(t, was)
	return event{began, time.Now(), err}
}

type fairJava struct{ *javaThread }

func codedFair(name string) string { return "fair/" + url.QueryEscape(name) }

func (j *fairJava) start(t testing.TB, name string, lease time.Duration) <-chan event {
	t.Helper()
	args := []string{codedFair(name)}
	if lease > 0 {
		args = append(args, ms(lease))
	}
	return j.startOp(t, "lock", args...)
}

func (j *fairJava) unlock(t testing.TB, name string) event {
	t.Helper()
	return j.do(t, "unlock", codedFair(name)).event
}

func (j *fairJava) tryInVain(t testing.TB, name string) {
	t.Helper()
	require.Equal(t, "false", j.ask(t, "trylock", codedFair(name), "0"))
}

func (j *fairJava) force(t testing.TB, name string) event {
	t.Helper()
	r := j.do(t, "force", codedFair(name))
	require.NoError(t, r.err)
	require.Equal(t, "true", r.value)
	return r.event
}

// entries are those of the queue.
func (w *fairWorld) entries(t testing.TB, name string) []string {
	t.Helper()
	all, err := w.watch.do(t, "LRANGE", fairKey("redisson_lock_queue", name), "0", "-1").AsStrSlice()
	require.NoError(t, err)
	return all
}

func fairKey(prefix, name string) string {
	return prefix + unlockChannel(name)[len("redisson_lock__channel"):]
}

// queueUp starts to lock a held lock, and returns when the waiter is in the queue and subscribed.
func (w *fairWorld) queueUp(t testing.TB, a actor, name string) <-chan event {
	t.Helper()
	n := len(w.entries(t, name))
	in := a.start(t, name, testTimeout)
	w.awaitEntries(t, name, n+1)
	if _, java := a.(*fairJava); java { // it subscribes behind that
		own := unlockChannel(name) + ":" + w.entries(t, name)[n]
		redistest.Eventually(t, 10*time.Second, func() bool { return w.listeners(t, own) == 1 }, "subscribed")
	}
	requireWaiting(t, in)
	return in
}

func (w *fairWorld) awaitEntries(t testing.TB, name string, n int) {
	t.Helper()
	redistest.Eventually(t, 10*time.Second, func() bool { return len(w.entries(t, name)) == n }, "in the queue")
}

func (w *fairWorld) listeners(t testing.TB, channel string) (sum int64) {
	t.Helper()
	cmd := "NUMSUB"
	if w.cluster && !w.plain {
		cmd = "SHARDNUMSUB"
	}
	for _, node := range w.watch.rdb.Nodes() {
		got, err := node.Do(t.Context(), node.B().Arbitrary("PUBSUB", cmd, channel).Build()).ToArray()
		require.NoError(t, err)
		n, err := got[1].AsInt64()
		require.NoError(t, err)
		sum += n
	}
	return sum
}

func (w *fairWorld) requireNothingLeft(t testing.TB, name string) {
	t.Helper()
	for _, key := range []string{name, fairKey("redisson_lock_queue", name), fairKey("redisson_lock_timeout", name)} {
		redistest.Eventually(t, 10*time.Second, func() bool { return !w.watch.exists(t, key) }, key+" is gone")
	}
}
