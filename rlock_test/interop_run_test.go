//go:build interop

package rlock_test

import (
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// TestInterop proves what docs/redisson.md promises: this library and the real Redisson, on one
// Redis, exclude, wake and respect each other. `make interop` builds what it needs and runs it.
//
// All settings are tried side by side, and in each what only lets time pass. Tests that measure time, or keep the machine busy, are alone.
func TestInterop(t *testing.T) {
	t.Parallel()
	for _, s := range settings(t) {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, s)
			t.Run("exclusion", w.exclusion)
			t.Run("plain", w.plainLock)
			t.Run("all", w.allWakesAndIsWoken)
			t.Run("fair", w.fair)
			t.Run("read and write", w.readAndWrite)
			t.Run("latch", w.latch)
			t.Run("semaphore", w.semaphore)
			if w.permits {
				t.Run("permits", w.permitsBothWays)
			}
			t.Run("leases", w.leases)
		})
	}
}

// exclusion has locks of three kinds at a time contended.
func (w *world) exclusion(t *testing.T) {
	alone(t)
	counted := map[string]func(*testing.T){"all": w.allInOppositeOrders, "semaphore": w.semaphoreHerd}
	if w.permits {
		counted["permits"] = w.permitsHerd
	}
	sideBySide(t, map[string]func(*testing.T){"plain": w.plainExclusion, "fair": w.fairExclusion, "read and write": w.rwExclusion})
	sideBySide(t, counted)
}

// sideBySide runs tests at once. With t.Parallel they would wait for tests that wait for this one.
func sideBySide(t *testing.T, tests map[string]func(*testing.T)) {
	t.Helper()
	var all sync.WaitGroup
	for name, test := range tests {
		all.Go(func() { t.Run(name, test) })
	}
	all.Wait()
}

func (w *world) plainLock(t *testing.T) {
	w.bothWays(t, "wake-up", w.wakeUp)
	t.Run("no polling", w.noPolling)
	w.bothWays(t, "queue", w.queue)
	w.bothWays(t, "names", w.names)
	w.bothWays(t, "re-entry", w.reentry)
	w.bothWays(t, "lost connections", w.lostConnections)
	if w.fenced {
		t.Run("fencing", w.fencing)
		t.Run("fencing, kept and taken along", w.fencedAlong)
	}
	if w.cluster {
		t.Run("odd braces", w.oddBraces)
	}
}

// leases are the tests in which time passes, all in parallel. They count nothing that others do as well.
func (w *world) leases(t *testing.T) {
	w.quickly(t, "watchdog", w.watchdog)
	eachInParallel(t, "watchdog, the other's is longer", [2]sides{
		{"Go holds", func() actor { return newGoActor(w.quickGo) }, func() actor { return w.java.thread() }},
		{"Java holds", func() actor { return w.quickJava.thread() }, func() actor { return newGoActor(w.watch.Client) }},
	}, w.watchdog)
	w.quickly(t, "watchdog, fair", fairly(w.watchdog))
	w.quickly(t, "fixed lease", w.fixedLease)
	w.slowly(t, "forced by the same side", w.forcedByHolder)
	w.slowly(t, "forced by the other side", w.forcedByStranger)
	w.slowly(t, "forced by the same side, fair", fairly(w.forcedByHolder))
	w.slowly(t, "forced by the other side, fair", fairly(w.forcedByStranger))
	tests := map[string]func(*testing.T){
		"shortest hold": w.shortestHold, "kept": w.kept, "taken along": w.takenAlong, "taken along, write": w.alongWrite,
		"Go is killed": w.goIsKilled, "Go is stopped": w.goIsStopped, "Java is killed": w.javaIsKilled, "many are gone": w.manyAreGone,
		"adopter is killed": w.adopterIsKilled, "Go's holder is stopped": w.holderIsStopped, "Go's waiter is stopped": w.waiterIsStopped,
		"Go's Client is closed": w.closes, "short leases": w.shortLeases,
		"longest hold": w.longestHold, "Java is interrupted": w.javaIsInterrupted, "Java is stopped": w.javaIsStopped,
		"readers and writers": w.rwWatchdog, "expiry, read and write": w.rwExpiry,
		"Go's reader lasts longer": w.rwGoLastsLonger, "the longest reader leaves": w.rwLongestLeaves,
	}
	if w.version == os.Getenv("REDISSON_NEWEST") {
		tests["tryLock in seconds"] = w.inSeconds
	}
	if w.permits {
		tests["permits expire"], tests["permits are kept"], tests["permits are taken away"] = w.permitsExpire, w.permitsKept, w.permitsTakenAway
	}
	for goes, java := range map[string]string{"": "", "fair": "fair", "write": "read", "read": "write"} {
		tests["asked, "+goes] = func(t *testing.T) { w.asked(t, goes, java) }
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// machine is locked by a test that measures time, or keeps the machine busy; for reading, by those that start Java, which takes seconds of CPU.
var machine sync.RWMutex

// starts bounds how many start Java at a time: of a dozen, each would take too long to connect.
var starts = make(chan struct{}, 2)

// startingJava returns the end of a start of Java.
func startingJava() (started func()) {
	starts <- struct{}{}
	machine.RLock()
	return func() {
		machine.RUnlock()
		<-starts
	}
}

// alone makes the rest of a test wait for others of that kind and for starts of Java, and them for it.
func alone(t *testing.T) {
	t.Helper()
	machine.Lock()
	t.Cleanup(machine.Unlock)
}

// setting is a kind of deployment and a version of Redisson.
type setting struct {
	cluster bool // of three masters
	version string
	plain   bool // a cluster on which Redisson does not use sharded pub/sub
	fenced  bool // Redisson has fenced locks
	permits bool // and ids of permits in the form of this library
}

func (s setting) String() string {
	kind := "standalone"
	if s.cluster {
		kind = "cluster"
	}
	if s.plain {
		kind += ",plain"
	}
	return kind + "," + s.version
}

// settings says which versions are tried where. They are named by make, which builds them.
func settings(t *testing.T) []setting {
	t.Helper()
	version := func(variable string) string {
		v := os.Getenv(variable)
		if v == "" {
			t.Fatalf("%s is not set: run the interop tests by `make interop`", variable)
		}
		return v
	}
	newest := version("REDISSON_NEWEST")
	sharded := version("REDISSON_SHARDED") // the oldest whose sharded pub/sub can be relied on
	oldest := version("REDISSON_OLDEST")   // the oldest whose scripts mean the same
	return []setting{
		{version: newest, fenced: true, permits: true},
		{version: oldest},
		{version: newest, fenced: true, permits: true, cluster: true},
		{version: sharded, fenced: true, permits: true, cluster: true},
		{version: oldest, cluster: true, plain: true},
	}
}

const (
	// shortLease is the watchdog time where the next renewal, or the end of a killed holder's lease, is waited for.
	shortLease = 6 * time.Second
	// endingLease is a fixed lease whose end is waited for. On a busy machine, waiters of another process stand behind it in seconds.
	endingLease = 15 * time.Second
	// late is how much later than the end of a lease a waiter may be in at the most: less than the shortest lease that it may have seen before.
	// After a message that is soon: a waiter that slept through it is in when the lease ends, which is at least 20 s later.
	late = 5 * time.Second
)

// world is one deployment with a client of each side, and an eye on it.
type world struct {
	setting
	addrs []string
	watch fixture // looks at Redis; its lock client is the Go side, with the usual watchdog time
	java  *redisson

	// With shortLease as their watchdog time.
	quickGo   *rlock.Client
	quickJava *redisson
}

func newWorld(t *testing.T, s setting) *world {
	t.Helper()
	w := newGoWorld(t, s)
	defer startingJava()()
	w.java = w.launchJava(t, rlock.DefaultWatchdogTimeout)
	w.quickJava = w.launchJava(t, shortLease)
	w.java.connected(t)
	w.quickJava.connected(t)
	return w
}

// newGoWorld is a world with the Go side alone.
func newGoWorld(t *testing.T, s setting) *world {
	t.Helper()
	w := &world{setting: s}
	var rdb rueidis.Client
	if s.cluster {
		c := redistest.StartCluster(t, 3, 0)
		w.addrs, rdb = c.Addrs(), c.Client(t)
	} else {
		server := redistest.Start(t)
		w.addrs, rdb = []string{server.Addr()}, server.Client(t)
	}
	w.watch = fixture{Client: newClient(t, rdb, w.options(0)), rdb: rdb}
	w.quickGo = newClient(t, rdb, w.options(shortLease))
	return w
}

func (w *world) options(watchdog time.Duration) rlock.Options {
	return rlock.Options{WatchdogTimeout: watchdog, PlainPubSub: w.plain}
}

// sides are the holder and the waiter of a test.
type sides struct {
	way            string
	holder, waiter func() actor
}

func ways(goes *rlock.Client, java *redisson) [2]sides {
	g := func() actor { return newGoActor(goes) }
	j := func() actor { return java.thread() }
	return [2]sides{{"Go holds", g, j}, {"Java holds", j, g}}
}

// bothWays runs a test with each side as the holder, one after the other.
func (w *world) bothWays(t *testing.T, name string, test func(*testing.T, sides)) {
	t.Helper()
	for _, s := range ways(w.watch.Client, w.java) {
		t.Run(name+"/"+s.way, func(t *testing.T) { test(t, s) })
	}
}

// quickly is bothWays on the clients with shortLease, in parallel with other tests.
func (w *world) quickly(t *testing.T, name string, test func(*testing.T, sides)) {
	t.Helper()
	eachInParallel(t, name, ways(w.quickGo, w.quickJava), test)
}

// slowly is bothWays in parallel with other tests.
func (w *world) slowly(t *testing.T, name string, test func(*testing.T, sides)) {
	t.Helper()
	eachInParallel(t, name, ways(w.watch.Client, w.java), test)
}

func eachInParallel(t *testing.T, name string, ways [2]sides, test func(*testing.T, sides)) {
	t.Helper()
	for _, s := range ways {
		t.Run(name+"/"+s.way, func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

// as is the same with locks of another kind.
func (s sides) as(kind string) sides {
	return sides{s.way, func() actor { return s.holder().as(kind) }, func() actor { return s.waiter().as(kind) }}
}

// fairly makes a test of plain locks one of fair locks.
func fairly(test func(*testing.T, sides)) func(*testing.T, sides) {
	return func(t *testing.T, s sides) { test(t, s.as("fair")) }
}

func unlockChannel(name string) string {
	if strings.Contains(name, "{") {
		return "redisson_lock__channel:" + name
	}
	return "redisson_lock__channel:{" + name + "}"
}

// subscribers counts the processes that are subscribed to the lock's channel.
func (w *world) subscribers(t testing.TB, name string) int64 {
	t.Helper()
	return w.listeners(t, unlockChannel(name))
}

// listeners counts the subscribers of a channel in the way that this deployment needs.
func (w *world) listeners(t testing.TB, channel string) (sum int64) {
	t.Helper()
	cmd := "NUMSUB"
	if w.cluster && !w.plain {
		cmd = "SHARDNUMSUB"
	}
	for _, node := range w.watch.rdb.Nodes() {
		got := answer(node.Do(t.Context(), node.B().Arbitrary("PUBSUB", cmd, channel).Build()).ToArray()).ok(t)
		n := answer(got[1].AsInt64()).ok(t)
		sum += n
	}
	return sum
}

// channels counts the channels that anybody is subscribed to.
func (w *world) channels(t testing.TB) (n int) {
	t.Helper()
	cmd := "CHANNELS"
	if w.cluster && !w.plain {
		cmd = "SHARDCHANNELS"
	}
	for _, node := range w.watch.rdb.Nodes() {
		names := answer(node.Do(t.Context(), node.B().Arbitrary("PUBSUB", cmd).Build()).AsStrSlice()).ok(t)
		n += len(names)
	}
	return n
}

// awaitSubscriber waits until somebody waits, or is about to.
func (w *world) awaitSubscriber(t testing.TB, name string) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool { return w.subscribers(t, name) == 1 },
		"one subscriber of "+unlockChannel(name))
}

// refusals counts the attempts of all clients that found a lock held: the acquire scripts of both
// sides then ask for its remaining time, by PTTL. Script calls would not do: a first EVALSHA that
// the server does not know is called twice, and renewals are script calls, too.
func (w *world) refusals(t testing.TB) int64 {
	t.Helper()
	return redistest.Commands(t, w.watch.rdb)["pttl"]
}

// awaitWaiters returns when the n waiters for name that start begins only wait: each is refused, has its
// subscription confirmed, is refused again, and then does nothing. To look for the subscription
// would not do: an unlock before the second attempt needs no message. In Go, one that finds the subscription of a
// waiter before it needs no second attempt.
func (w *world) awaitWaiters(t testing.TB, name string, n int64, start func()) {
	t.Helper()
	stands := w.subscribers(t, name) > 0
	before := w.refusals(t)
	start()
	redistest.Eventually(t, testTimeout, func() bool {
		refused := w.refusals(t) - before
		return refused >= 2*n || stands && refused >= n
	}, "they only wait")
}

// startWaiting begins to lock a lock that another holds, and returns when that only waits.
func (w *world) startWaiting(t testing.TB, a actor, name string) <-chan event {
	t.Helper()
	var in <-chan event
	if n, ok := a.(*nodeThread); ok {
		return w.startWaitingInNode(t, n, name)
	}
	// A fixed lease: Redisson's renewals multiply, see docs/redisson.md.
	w.awaitWaiters(t, name, 1, func() { in = a.start(t, name, testTimeout) })
	requireWaiting(t, in)
	return in
}

// joins begins to lock a lock that another holds, and returns when that waits. In Go an unlock may meet its last attempt.
func (w *world) joins(t testing.TB, a actor, name string) (in <-chan event) {
	t.Helper()
	if n, ok := a.(*nodeThread); ok {
		return w.startWaitingInNode(t, n, name)
	}
	switch kind, j := a.lockKind(), javaOf(a); {
	case kind == "fair":
		n := len(w.entries(t, name))
		in = a.start(t, name, testTimeout)
		w.awaitEntries(t, name, n+1)
		if j != nil {
			j.sleeps(t)
		}
	case j != nil: // a thread that is about to sleep misses a broadcast
		in = a.start(t, name, testTimeout)
		j.sleeps(t)
	default:
		channel := unlockChannel(name)
		if kind != "" {
			channel = rwChannel(name)
		}
		in = a.start(t, name, testTimeout)
		redistest.Eventually(t, testTimeout, func() bool { return w.listeners(t, channel) > 0 }, "it is subscribed")
	}
	requireWaiting(t, in)
	return in
}

// holds requires that the lock is held by field alone, count deep, or is so soon: in Go the count follows.
func (w *world) holds(t testing.TB, name, field string, count int64) {
	t.Helper()
	w.watch.awaitFields(t, name, map[string]int64{field: count})
}
