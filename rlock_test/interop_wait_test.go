//go:build interop

package rlock_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

func (w *world) plainExclusion(t *testing.T) {
	name := redistest.Name(t)
	inGo, inJava := w.exclude(t, goJob{Name: name})
	require.Positive(t, inGo)
	require.Positive(t, inJava)
	require.False(t, w.watch.exists(t, name))
}

// exclude lets two processes of each side, with two threads each, lock and unlock one lock for 5 s.
func (w *world) exclude(t *testing.T, job goJob) (inGo, inJava int64) {
	t.Helper()
	const long = 5 * time.Second
	job.File, job.Threads, job.For = numberFile(t), 2, long
	goes := [2]*goProcess{w.startGo(t, job), w.startGo(t, job)}
	var replies []<-chan reply
	for i, r := range []*redisson{w.java, w.quickJava} {
		goes[i].begin(t)
		for range job.Threads {
			replies = append(replies, r.thread().send(t, "hammer", wordOf(job.Kind, job.Name), url.QueryEscape(job.File), ms(long)))
		}
	}
	inJava = w.java.sum(t, replies)
	for _, p := range goes {
		n := answer(strconv.ParseInt(p.expect(t, "sections", time.Minute), 10, 64)).ok(t)
		inGo += n
		p.end(t)
	}
	got := answer(readNumber(job.File)).ok(t)
	t.Logf("%d sections in Go, %d in Java, %d in the file", inGo, inJava, got)
	require.Equal(t, inJava+inGo, got, "an addition was lost")
	return inGo, inJava
}

// numberFile is a new file with the number 0.
func numberFile(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "number")
	require.NoError(t, os.WriteFile(file, []byte("0"), 0o600))
	return file
}

// wakeUps are times from the call of unlock on one side to the return of lock on the other. floor is what two calls of unlock took
// meanwhile, one of each side.
type wakeUps struct{ took, floor []time.Duration }

func (w *wakeUps) add(t testing.TB, unlocked, in, after event) {
	t.Helper()
	w.took = append(w.took, redistest.Ran(t, unlocked.began, in.ended))
	w.floor = append(w.floor, unlocked.ended.Sub(unlocked.began)+after.ended.Sub(after.began))
}

// requirePrompt checks the times after the first few. A busy machine slows the floor as well. No lease ends soon.
func (w *wakeUps) requirePrompt(t testing.TB, warmUp int) {
	t.Helper()
	took, floor := slices.Sorted(slices.Values(w.took[warmUp:])), slices.Sorted(slices.Values(w.floor[warmUp:]))
	n := len(took)
	t.Logf("wake-up: median %v, p99 %v, max %v; median of two calls %v", took[n/2], took[n*99/100], took[n-1], floor[n/2])
	require.LessOrEqual(t, took[n/2], max(20*time.Millisecond, 10*floor[n/2]), "median")
	require.LessOrEqual(t, took[n-1], soon, "max")
}

// measure measures wake-ups. waits is how the waiter begins to wait.
func (w *world) measure(t *testing.T, warmUp, rounds int, holder, waiter actor, waits func(testing.TB, actor, string) <-chan event, names ...string) {
	t.Helper()
	var all wakeUps
	for i := range warmUp + rounds {
		name := names[i%len(names)]
		lock(t, holder, name, testTimeout)
		in := waits(t, waiter, name)
		unlocked := unlock(t, holder, name)
		got := await(t, in, 2*testTimeout)
		all.add(t, unlocked, got, unlock(t, waiter, name))
	}
	all.requirePrompt(t, warmUp)
	w.requireNothingLeft(t, names[0])
}

func (w *world) wakeUp(t *testing.T, s sides) {
	alone(t)
	var names [8]string // on a cluster: some for each node
	for i := range names {
		names[i] = redistest.Name(t)
	}
	w.measure(t, 50, 200, s.holder(), s.waiter(), w.startWaiting, names[:]...)
}

// While Go waits for Java, it sends nothing to Redis.
func (w *world) noPolling(t *testing.T) {
	holder, name := w.java.thread(), redistest.Name(t)
	lock(t, holder, name, testTimeout) // fixed, so that Java does not renew
	const n = 20
	var waiters [n]*goActor
	var in [n]<-chan event
	for i := range waiters {
		waiters[i] = newGoActor(w.watch.Client)
		if i == 0 { // only the first waiter of a process asks Redis
			in[i] = w.startWaiting(t, waiters[i], name)
		} else {
			in[i] = waiters[i].start(t, name, testTimeout)
		}
		redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == i+1 }, "it waits")
	}

	channels := 3 // the lock's, the line's and the process's
	if w.cluster && w.plain {
		channels = 2 // there is no line
	}
	redistest.Eventually(t, testTimeout, func() bool { return w.channels(t) == channels }, "earlier waiters must have left")
	before := redistest.Commands(t, w.watch.rdb)
	sleep(3 * time.Second)
	after := redistest.Commands(t, w.watch.rdb)
	for command, calls := range after {
		switch command {
		case "info": // the count itself
		case "ping": // both clients check their connections
		case "cluster|nodes", "cluster|info", "cluster|slots", "cluster|shards": // and after the cluster
		default:
			assert.Equal(t, before[command], calls, command)
		}
	}

	unlock(t, holder, name)
	for i := range waiters { // first in, first out
		await(t, in[i], soon)
		unlock(t, waiters[i], name)
	}
}

// Fifty waiters of both sides behind one holder: each gets the lock once, alone, woken by a message.
func (w *world) queue(t *testing.T, s sides) {
	const each = 25
	name, first := redistest.Name(t), s.holder()
	lock(t, first, name, testTimeout)
	var waiters []actor
	var in []<-chan event
	join := func(a actor) {
		waiters = append(waiters, a)
		in = append(in, a.start(t, name, testTimeout))
	}
	// In Go the first waiter asks for all; in Java each waiter asks.
	w.awaitWaiters(t, name, 1+each, func() {
		for range each {
			join(newGoActor(w.watch.Client))
			join(w.java.thread())
		}
	})
	redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == each }, "all Go waiters must wait")

	began := time.Now()
	unlock(t, first, name)
	var inside, times atomic.Int64
	var wg sync.WaitGroup
	for i, a := range waiters {
		wg.Go(func() {
			select {
			case e := <-in[i]:
				assert.NoError(t, e.err)
			case <-time.After(testTimeout):
				assert.Fail(t, "never got in")
				return
			}
			assert.EqualValues(t, 1, inside.Add(1), "alone")
			times.Add(1)
			inside.Add(-1)
			assert.NoError(t, a.unlock(t, name).err)
		})
	}
	wg.Wait()
	require.EqualValues(t, 2*each, times.Load())
	require.False(t, w.watch.exists(t, name))
	t.Logf("%d waiters were served in %v", 2*each, time.Since(began).Round(time.Millisecond))
}

// The waiter's subscription is lost. In Java it misses what is published before the next one.
func (w *world) lostConnections(t *testing.T, s sides) {
	holder, waiter, name := s.holder(), s.waiter(), redistest.Name(t)
	rounds := 5
	if javaOf(waiter) != nil {
		rounds = 1 // it is subscribed again after a second or two
	}
	for range rounds {
		lock(t, holder, name, testTimeout)
		in := w.joins(t, waiter, name)
		var cut int64
		for _, node := range w.watch.rdb.Nodes() {
			n := answer(node.Do(t.Context(), node.B().Arbitrary("CLIENT", "KILL", "TYPE", "pubsub").Build()).AsInt64()).ok(t)
			cut += n
		}
		require.Positive(t, cut)
		if javaOf(waiter) != nil {
			w.awaitSubscriber(t, name)
		}
		unlocked := unlock(t, holder, name)
		requireIn(t, soon, unlocked.began, await(t, in, testTimeout))
		unlock(t, waiter, name)
	}
}

// interopNames are names for which the two sides' naming rules could differ.
var interopNames = []string{
	"{tag}", "{tag}:rest", "rest:{tag}", "a{tag}b{other}", "a:b:c", ":", "with space", " ", "größe", "锁", "🔒",
	"a/b?c=d&e", `"quoted" 'too' \`, "50%", "a+b", "*", "line\nbreak",
}

// oddNames have braces that are no hash tag, or give the channel another tag than the key.
var oddNames = []string{"{}", "a{}b", "a{b", "}{", "{"}

func (w *world) names(t *testing.T, s sides) {
	holder, waiter, names := s.holder(), s.waiter(), interopNames
	plain := holder.lockKind() == ""
	if plain && !w.cluster {
		names = append(slices.Clone(names), oddNames...)
	}
	for _, name := range names {
		name += redistest.Name(t)
		lock(t, holder, name, testTimeout)
		w.holds(t, name, holder.field(t, name), 1)
		waiter.tryInVain(t, name)
		in := w.joins(t, waiter, name)
		if plain {
			require.EqualValues(t, 1, w.subscribers(t, name), name)
		}
		unlocked := unlock(t, holder, name)
		requireIn(t, soon, unlocked.began, await(t, in, testTimeout), name)
		w.holds(t, name, waiter.field(t, name), 1)
		unlock(t, waiter, name)
		w.requireNothingLeft(t, name)
	}
}

// On a cluster, all keys of a script must be in one slot. Redisson's scripts pass the channel as a key, and such
// a name puts it in another slot. So Redisson takes these locks and fails to unlock them, or, if old and
// given an unclosed brace, fails to take them. Ours work. Between the two sides only exclusion holds.
func (w *world) oddBraces(t *testing.T) {
	goes, java := newGoActor(w.watch.Client), w.java.thread()
	for i, name := range oddNames {
		name += fmt.Sprint("odd", i)
		lock(t, goes, name, testTimeout)
		got := java.do(t, "trylock", url.QueryEscape(name), "0")
		unlock(t, goes, name)
		require.False(t, w.watch.exists(t, name))
		if w.plain && got.err != nil {
			require.ErrorContains(t, got.err, "StringIndexOutOfBoundsException")
			continue
		}
		require.NoError(t, got.err)
		require.Equal(t, "false", got.value)

		lock(t, java, name, testTimeout)
		goes.tryInVain(t, name)
		require.ErrorContains(t, java.unlock(t, name).err, "CROSSSLOT")
		w.holds(t, name, java.field(t, name), 1)
		goes.force(t, name)
		require.False(t, w.watch.exists(t, name))
	}
}

// turnKinds are the kinds without a common queue in which Redisson waits, too.
var turnKinds = []string{"", "fenced", "write"}

// TestInteropTurns is about who gets a lock that many callers of both sides want without a pause.
func TestInteropTurns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings(t)[0])
	for _, kind := range turnKinds {
		t.Run("short sections/"+kind, func(t *testing.T) {
			alone(t)
			w.herd(t, kind, herd{processes: 8, threads: 2, java: 8, section: 2 * time.Millisecond, long: 12 * time.Second}).requireEach(t)
		})
	}
	for _, kind := range turnKinds { // they leave the machine idle
		t.Run("long sections/"+kind, func(t *testing.T) {
			t.Parallel()
			w.herd(t, kind, herd{processes: 4, threads: 1, java: 2, section: 300 * time.Millisecond, long: 40 * time.Second}).requireEach(t)
		})
		t.Run("one busy goroutine/"+kind, func(t *testing.T) {
			t.Parallel()
			w.besideABusyOne(t, kind)
		})
	}
}

// herd is so many processes of Go, with so many goroutines each, and so many threads of one Redisson.
type herd struct {
	processes, threads, java int
	section, long            time.Duration
}

// shares is what each caller of a herd got.
type shares struct{ inGo, inJava []turnsHad }

func (s shares) mean() int {
	sum, _ := sumOf(slices.Concat(s.inGo, s.inJava))
	return sum / (len(s.inGo) + len(s.inJava))
}

// requireEach requires that each caller has had a third of the mean. Mostly it is more than half.
func (s shares) requireEach(t *testing.T) {
	t.Helper()
	ofGo, longestGo := sumOf(s.inGo)
	ofJava, longestJava := sumOf(s.inJava)
	t.Logf("%d sections, %d for each on average. Go: %d, least %d, longest wait %v. Java: %d, least %d, longest wait %v",
		ofGo+ofJava, s.mean(), ofGo, leastOf(s.inGo), longestGo, ofJava, leastOf(s.inJava), longestJava)
	require.GreaterOrEqual(t, leastOf(s.inGo), s.mean()/3, "%+v", s)
	require.GreaterOrEqual(t, leastOf(s.inJava), s.mean()/3, "%+v", s)
}

// herd lets a herd compete for one lock.
func (w *world) herd(t *testing.T, kind string, h herd) (all shares) {
	t.Helper()
	job := goJob{Name: redistest.Name(t), Kind: kind, Threads: h.threads, For: h.long, Section: h.section}
	goes := make([]*goProcess, h.processes)
	for i := range goes {
		goes[i] = w.startGo(t, job)
	}
	var replies []<-chan reply
	for range h.java {
		replies = append(replies, w.java.thread().send(t, "turns", wordOf(kind, job.Name), ms(h.section), ms(h.long)))
	}
	for _, p := range goes {
		p.begin(t)
	}
	for _, p := range goes {
		for text := range strings.FieldsSeq(p.expect(t, "turns", h.long+time.Minute)) {
			all.inGo = append(all.inGo, parseTurns(t, text))
		}
		p.end(t)
	}
	for _, ch := range replies {
		r := w.java.await(t, ch)
		require.NoError(t, r.err)
		all.inJava = append(all.inJava, parseTurns(t, r.value))
	}
	return all
}

func sumOf(all []turnsHad) (sum int, longest time.Duration) {
	for _, x := range all {
		sum, longest = sum+x.sections, max(longest, x.longest)
	}
	return sum, longest
}

func leastOf(all []turnsHad) int {
	return slices.MinFunc(all, func(a, b turnsHad) int { return a.sections - b.sections }).sections
}

// besideABusyOne lets Redisson try beside one goroutine that locks again right after its unlock.
func (w *world) besideABusyOne(t *testing.T, kind string) {
	t.Helper()
	job := goJob{Name: redistest.Name(t), Kind: kind, Threads: 1, For: time.Hour, Section: 300 * time.Millisecond}
	p := w.startGo(t, job)
	p.begin(t)
	redistest.Eventually(t, testTimeout, func() bool { return w.watch.exists(t, job.Name) }, "it is busy")
	java, word := w.java.thread(), wordOf(kind, job.Name)
	for range 4 {
		got := java.do(t, "trylock", word, ms(testTimeout/2))
		require.NoError(t, got.err)
		require.Equal(t, "true", got.value)
		requireIn(t, 3*time.Second, got.began, got.event, "it has its turn")
		sleep(job.Section / 2) // its own section, in the midst of which the other waits
		java.ask(t, "unlock", word)
	}
	p.kill()
}
