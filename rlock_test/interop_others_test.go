//go:build interop

package rlock_test

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// TestInteropNodeRedisson proves what docs/beside-other-libraries.md says of node-redisson.
func TestInteropNodeRedisson(t *testing.T) {
	t.Parallel()
	newest := settings(t)[0]
	w := newGoWorld(t, newest)
	numbers, uuids, quick := w.startNode(t), w.startNode(t, "--ids=uuid"), w.startNode(t, "--ids=uuid", "--watchdog="+ms(shortLease))
	both := func(t *testing.T, s [2]sides, test func(*testing.T, sides)) {
		t.Helper()
		for _, s := range s {
			t.Run(s.way, func(t *testing.T) { test(t, s) })
		}
	}
	together := func(test func(*testing.T, sides)) func(*testing.T, sides) {
		return func(t *testing.T, s sides) {
			t.Parallel()
			test(t, s)
		}
	}
	meet := func(t *testing.T, s sides) {
		w.nodeWakeUp(t, s)
		w.nodeReentry(t, s)
	}
	t.Run("numeric id", func(t *testing.T) { both(t, w.waysInNode(numbers), meet) })
	t.Run("default id", func(t *testing.T) { both(t, w.waysInNode(uuids), meet) })
	t.Run("default id, beside Java", func(t *testing.T) {
		s, java := w.waysInNode(uuids), w.startJava(t, 30*time.Second)
		inJava := func() actor { return java.thread() }
		both(t, [2]sides{{"Java holds", inJava, s[0].waiter}, {"Node holds", s[1].holder, inJava}}, meet)
	})
	t.Run("forced", func(t *testing.T) { both(t, w.waysInNodeOf(w.watch.Client, numbers), w.forcedByStranger) })
	t.Run("exclusion", w.nodeExclusion)
	t.Run("leases", func(t *testing.T) {
		t.Parallel()
		t.Run("renewed", func(t *testing.T) { both(t, w.waysInNode(quick), together(w.watchdog)) })
		t.Run("fixed", func(t *testing.T) { both(t, w.waysInNode(quick), together(w.fixedLease)) })
		t.Run("killed", w.nodeIsKilled)
		t.Run("tryLock", w.nodeTryLock)
		t.Run("two waiters", w.nodeGivesUp)
	})
	t.Run("braces at the end", func(t *testing.T) { nodeUnheard(t, newest, "order:{42}", "--events=pubsub") })
	t.Run("streams", func(t *testing.T) { nodeUnheard(t, newest, "order:42", "--events=streams") })
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		w := newGoWorld(t, setting{cluster: true, plain: true, version: newest.version})
		both(t, w.waysInNode(w.startNode(t)), w.nodeWakeUp)
	})
}

// waysInNode are both ways, with shortLease as Go's watchdog time.
func (w *world) waysInNode(node *redisson) [2]sides { return w.waysInNodeOf(w.quickGo, node) }

func (w *world) waysInNodeOf(c *rlock.Client, node *redisson) [2]sides {
	goes := func() actor { return newGoActor(c) }
	inNode := func() actor { return &nodeThread{node.thread()} }
	return [2]sides{{"Go holds", goes, inNode}, {"Node holds", inNode, goes}}
}

// startNode runs node-redisson.
func (w *world) startNode(t testing.TB, args ...string) *redisson {
	t.Helper()
	if _, err := os.Stat(filepath.Join("others", "node", "node_modules")); err != nil {
		t.Fatalf("%v: %s", err, makeInterop)
	}
	args = append([]string{filepath.Join("others", "node", "peer.js")}, args...)
	if w.cluster {
		args = append(args, "--mode=cluster")
	}
	return startPeer(t, "node-redisson", exec.Command("node", append(args, w.addrs...)...))
}

// nodeThread is an owner in a process of Node.
type nodeThread struct{ *javaThread }

func (n *nodeThread) field(t testing.TB, name string) string {
	t.Helper()
	return n.ask(t, "field", url.QueryEscape(name))
}

func (n *nodeThread) requireNotHeld(t testing.TB, err error) {
	t.Helper()
	var e *javaError
	require.ErrorAs(t, err, &e)
	require.Equal(t, "RedissonLockError", e.class)
}

// startWaitingInNode is startWaiting for node-redisson, which asks twice, and then subscribes. It misses what is published before it has
// read the server's confirmation.
func (w *world) startWaitingInNode(t testing.TB, n *nodeThread, name string) <-chan event {
	t.Helper()
	before := w.subscribers(t, name)
	in := n.start(t, name, testTimeout)
	redistest.Eventually(t, testTimeout, func() bool { return w.subscribers(t, name) == before+1 }, "it is subscribed")
	n.of.thread().ask(t, "locked", url.QueryEscape(name)) // so it has read what was there to read
	requireWaiting(t, in)
	return in
}

// startWaitingBehind is startWaiting for a holder that may have a default id. Behind an owner that is not in Java's form, Go's script looks
// twice at the remaining time, by which refusals are counted.
func (w *world) startWaitingBehind(t testing.TB, holder, a actor, name string) (in <-chan event) {
	t.Helper()
	if _, ok := a.(*goActor); !ok || strings.Count(holder.field(t, name), "-") == 4 { // one UUID
		return w.startWaiting(t, a, name)
	}
	w.awaitWaiters(t, name, 2, func() { in = a.start(t, name, testTimeout) })
	requireWaiting(t, in)
	return in
}

// Each side's unlock wakes the other, for names with and without braces.
func (w *world) nodeWakeUp(t *testing.T, s sides) {
	const rounds = 20
	holder, waiter := s.holder(), s.waiter()
	var took []time.Duration
	for i := range rounds {
		name := redistest.Name(t)
		if i%2 == 1 {
			name = "{" + name + "}:a b"
		}
		lock(t, holder, name, testTimeout)
		w.holds(t, name, holder.field(t, name), 1)
		waiter.tryInVain(t, name)
		in := w.startWaitingBehind(t, holder, waiter, name)
		unlocked := unlock(t, holder, name)
		got := await(t, in, testTimeout)
		requireIn(t, soon, unlocked.began, got)
		took = append(took, got.ended.Sub(unlocked.began))
		w.holds(t, name, waiter.field(t, name), 1)
		unlock(t, waiter, name)
		require.False(t, w.watch.exists(t, name))
	}
	slices.Sort(took)
	t.Logf("wake-up: median %v, max %v", took[rounds/2], took[rounds-1])
}

// The count that each side writes is the other's, too.
func (w *world) nodeReentry(t *testing.T, s sides) {
	holder, waiter, name := s.holder(), s.waiter(), redistest.Name(t)
	for count := int64(1); count <= 2; count++ {
		lock(t, holder, name, testTimeout)
		w.holds(t, name, holder.field(t, name), count)
	}
	in := w.startWaitingBehind(t, holder, waiter, name)
	unlock(t, holder, name)
	w.holds(t, name, holder.field(t, name), 1)
	requireWaiting(t, in)
	unlocked := unlock(t, holder, name)
	requireIn(t, soon, unlocked.began, await(t, in, testTimeout))
	unlock(t, waiter, name)
}

// A process of each side and of each form of id, in and out of one lock. Node has one waiter in each process: with two, the first that
// wakes ends the subscription of the other.
func (w *world) nodeExclusion(t *testing.T) {
	alone(t)
	const long = 3 * time.Second
	name := redistest.Name(t)
	file := numberFile(t)
	goes := w.startGo(t, goJob{Watchdog: shortLease, Name: name, File: file, Threads: 2, For: long})
	var nodes []*redisson
	var replies []<-chan reply
	for _, ids := range []string{"number", "uuid"} {
		nodes = append(nodes, w.startNode(t, "--ids="+ids, "--watchdog="+ms(shortLease)))
	}
	goes.begin(t)
	for _, node := range nodes {
		replies = append(replies, node.send(t, "a", "hammer", url.QueryEscape(name), url.QueryEscape(file), ms(long)))
	}
	sum := nodes[0].sum(t, replies)
	n := answer(strconv.ParseInt(goes.expect(t, "sections", time.Minute), 10, 64)).ok(t)
	goes.end(t)
	answer(readNumber(file)).is(t, sum+n, "an addition was lost")
	t.Logf("%d sections in Go, %d in Node", n, sum)
}

func (w *world) nodeIsKilled(t *testing.T) {
	t.Parallel()
	name, waiter := redistest.Name(t), newGoActor(w.quickGo)
	p := w.startNode(t, "--ids=uuid", "--watchdog="+ms(shortLease))
	lock(t, &nodeThread{p.thread()}, name, 0)
	in := w.startWaiting(t, waiter, name)
	p.kill()
	w.inherits(t, waiter, name, in)
}

// Its tryLock gives up when the lease ends that it saw, although its time is not over and the lock is free.
func (w *world) nodeTryLock(t *testing.T) {
	t.Parallel()
	name, node := redistest.Name(t), w.startNode(t).thread()
	lock(t, newGoActor(w.quickGo), name, endingLease)
	got := node.do(t, "trylock", url.QueryEscape(name), ms(time.Minute))
	require.NoError(t, got.err)
	require.Equal(t, "false", got.value)
	require.Less(t, got.ended.Sub(got.began), time.Minute/2)
	require.False(t, w.watch.exists(t, name))
}

// A waiter that gives up ends the subscription of its whole process: another one of that name sleeps until the lease ends that it saw.
func (w *world) nodeGivesUp(t *testing.T) {
	t.Parallel()
	name, holder, node := redistest.Name(t), newGoActor(w.quickGo), w.startNode(t)
	waiter := &nodeThread{node.thread()}
	held := lock(t, holder, name, endingLease)
	in := w.startWaiting(t, waiter, name)
	require.Equal(t, "false", node.thread().ask(t, "trylock", url.QueryEscape(name), "100"))
	redistest.Eventually(t, testTimeout, func() bool { return w.subscribers(t, name) == 0 }, "nobody is subscribed")
	unlock(t, holder, name)
	require.GreaterOrEqual(t, await(t, in, testTimeout).ended.Sub(held.began), endingLease-time.Millisecond)
	unlock(t, waiter, name)
}

// Neither side's message reaches the other: a waiter sleeps on beside a free lock, until the lease ends that it saw.
func nodeUnheard(t *testing.T, at setting, name, arg string) {
	t.Parallel()
	for i, way := range []string{"Go holds", "Node holds"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			w := newGoWorld(t, at) // its own, since refusals are counted
			s := w.waysInNode(w.startNode(t, arg))[i]
			holder, waiter := s.holder(), s.waiter()
			held := lock(t, holder, name, endingLease)
			var in <-chan event
			w.awaitWaiters(t, name, 1, func() { in = waiter.start(t, name, testTimeout) })
			unlock(t, holder, name)
			inAfter(t, held, in)
			unlock(t, waiter, name)
		})
	}
}

// TestInteropCheerego proves what docs/beside-other-libraries.md says of cheerego/go-redisson.
func TestInteropCheerego(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]func(t *testing.T, w *world, cheerego *javaThread, name string){
		"it holds, Go sleeps until the lease ends": cheeregoHolds,
		"Go holds, it gives up":                    cheeregoWaits,
		"inner unlock":                             cheeregoInnerUnlock,
		"mutex":                                    cheeregoMutex,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newGoWorld(t, settings(t)[0]) // its own, since refusals are counted
			test(t, w, w.startCheerego(t).thread(), redistest.Name(t))
		})
	}
}

func (w *world) startCheerego(t testing.TB) *redisson {
	t.Helper()
	program := filepath.Join("others", "cheerego", "target", "cheerego")
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: %s", err, makeInterop)
	}
	return startPeer(t, "cheerego", exec.Command(program, w.addrs...))
}

// takes gets cheerego's lock in one attempt.
func (j *javaThread) takes(t testing.TB, name string, lease time.Duration) event {
	t.Helper()
	got := j.do(t, "trylock", url.QueryEscape(name), "0", ms(lease))
	require.NoError(t, got.err)
	require.Equal(t, "true", got.value)
	return got.event
}

// Its unlock is announced on another channel.
func cheeregoHolds(t *testing.T, w *world, cheerego *javaThread, name string) {
	waiter := newGoActor(w.watch.Client)
	held := cheerego.takes(t, name, endingLease)
	waiter.tryInVain(t, name)
	in := w.startWaiting(t, waiter, name)
	require.NoError(t, cheerego.unlock(t, name).err)
	inAfter(t, held, in)
	unlock(t, waiter, name)
}

// Its waiters ask again only when a message arrives on that channel, so they never get a lock that another library unlocked.
func cheeregoWaits(t *testing.T, w *world, cheerego *javaThread, name string) {
	holder := newGoActor(w.watch.Client)
	lock(t, holder, name, 0)
	cheerego.tryInVain(t, name)
	require.Equal(t, "false", cheerego.ask(t, "trylock", url.QueryEscape(name), "-1"), "which is its Lock")
	before := w.refusals(t)
	in := cheerego.of.send(t, cheerego.name, "trylock", url.QueryEscape(name), "3000")
	redistest.Eventually(t, testTimeout, func() bool { return w.refusals(t) > before }, "it was refused")
	unlock(t, holder, name)
	require.False(t, w.watch.exists(t, name))
	require.Equal(t, "false", cheerego.of.await(t, in).value)
	require.False(t, w.watch.exists(t, name))
}

// It gives nanoseconds to Redis, which wants milliseconds.
func cheeregoInnerUnlock(t *testing.T, w *world, cheerego *javaThread, name string) {
	for range 2 {
		cheerego.takes(t, name, time.Minute)
	}
	require.NoError(t, cheerego.unlock(t, name).err)
	require.Greater(t, w.watch.pttl(t, name), 347*24*time.Hour)
	newGoActor(w.watch.Client).tryInVain(t, name)
	require.NoError(t, cheerego.unlock(t, name).err)
	require.False(t, w.watch.exists(t, name))
}

// Its Mutex is a text, which is no lock for this library, and its unlock deletes any key.
func cheeregoMutex(t *testing.T, w *world, cheerego *javaThread, name string) {
	require.Equal(t, "true", cheerego.ask(t, "mutex.trylock", url.QueryEscape(name), "0", "60000"))
	_, _, err := w.watch.Mutex(name).TryLock(t.Context(), 0)
	require.ErrorContains(t, err, "not a lock")
	require.NoError(t, cheerego.do(t, "mutex.unlock", url.QueryEscape(name)).err)

	holder := newGoActor(w.watch.Client)
	lock(t, holder, name, 0)
	require.Equal(t, "false", cheerego.ask(t, "mutex.trylock", url.QueryEscape(name), "0", "60000"))
	require.NoError(t, cheerego.do(t, "mutex.unlock", url.QueryEscape(name)).err)
	require.False(t, w.watch.exists(t, name))
	holder.requireNotHeld(t, holder.unlock(t, name).err)
}
