//go:build interop

package rlock_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

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

// besideABusyOne lets Redisson try for 3 s beside one goroutine that locks again right after its unlock.
func (w *world) besideABusyOne(t *testing.T, kind string) {
	t.Helper()
	job := goJob{Name: redistest.Name(t), Kind: kind, Threads: 1, For: 20 * time.Second, Section: 300 * time.Millisecond}
	p := w.startGo(t, job)
	p.begin(t)
	redistest.Eventually(t, testTimeout, func() bool { return w.watch.exists(t, job.Name) }, "it is busy")
	java, word := w.java.thread(), wordOf(kind, job.Name)
	for range 4 {
		began := time.Now()
		require.Equal(t, "true", java.ask(t, "trylock", word, "3000"))
		t.Logf("Java waited %v", time.Since(began))
		sleep(job.Section / 2) // its own section, in the midst of which the other waits
		java.ask(t, "unlock", word)
	}
	p.kill()
}
