package lua_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// sleeper is a process that asks after a message, or at its own time.
type sleeper struct {
	id      int
	ear     *ear
	wants   []int64
	due     time.Duration // when it asks
	late    time.Duration // how much later than the script that named the time, at most
	stopped bool
}

// bed holds the sleepers and their clock.
type bed struct {
	sem
	all  []*sleeper
	held int64

	began  time.Time
	passed time.Duration // by pass
}

// now is the time on the clock of the scripts: the machine's time passes, too.
func (b *bed) now() time.Duration { return time.Since(b.began) + b.passed }

const sleepKeep = 2 * time.Second // how long permits are reserved here

// ask is a request of a process, and its answer.
func (b *bed) ask(p *sleeper, gives int64) {
	b.t.Helper()
	a := b.request(p.id)
	a.Keep, a.N, a.Wants, a.Waits = sleepKeep, gives, slices.Clone(p.wants), true
	sent := b.now()
	r := b.use(a)
	b.held -= gives
	for _, i := range slices.Backward(r.Granted) {
		b.held += p.wants[i]
		p.wants = slices.Delete(p.wants, i, i+1)
	}
	p.due, p.late = b.now()+r.Again, b.now()-sent
	b.hear(sent)
}

// hear makes processes read the messages of a call.
func (b *bed) hear(sent time.Duration) {
	b.t.Helper()
	for _, p := range b.all {
		for _, said := range p.ear.said() {
			ms, err := strconv.Atoi(strings.TrimPrefix(said, "? "))
			require.NoError(b.t, err)
			if due := b.now() + time.Duration(ms)*time.Millisecond; due < p.due {
				p.due, p.late = due, b.now()-sent
			}
		}
	}
}

// pass advances the clock: each live process that is due asks.
func (b *bed) pass(d time.Duration) {
	b.t.Helper()
	for end := b.now() + d; ; {
		until := max(end, b.now())
		var next *sleeper
		for _, p := range b.all {
			if !p.stopped && len(p.wants) > 0 && p.due-p.late <= until && (next == nil || p.due < next.due) {
				next = p
			}
		}
		to := end
		if next != nil {
			to = next.due
		}
		if by := (to - b.now() + time.Millisecond - 1).Truncate(time.Millisecond); by > 0 { // not too early
			b.later(by)
			b.passed += by
		}
		if next == nil {
			return
		}
		b.ask(next, 0)
	}
}

// awake requires that no live process sleeps while the permits for its first want are free, unless they gather for a process before it.
func (b *bed) awake() {
	b.t.Helper()
	free := b.free()
	require.Equal(b.t, int64(6), free+b.held)
	// The first in line wants more than is free, if it lives.
	for _, first := range b.places() {
		for _, p := range b.all {
			if client(p.id) == first && !p.stopped {
				require.Greater(b.t, p.wants[0], free, "%d wants %v, %d are free, at %v, due %v", p.id, p.wants, free, b.now(), p.due)
				return
			}
		}
	}
}

// No process oversleeps a release, even if some are stopped: each costs the others one reservation time.
func TestSemaphoreNobodySleeps(t *testing.T) {
	t.Parallel()
	for stopped, within := range map[int]time.Duration{0: time.Millisecond, 1: sleepKeep + time.Second, 4: 4*sleepKeep + time.Second} {
		t.Run(fmt.Sprint(stopped), func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			random := rand.New(rand.NewPCG(seed, 0))
			b := &bed{sem: sharedSem(t), began: time.Now()}
			b.set(6)
			for i := range 6 {
				b.all = append(b.all, &sleeper{id: i + 1, ear: b.process(i + 1)})
			}
			for range 60 {
				for range 8 {
					p := b.all[random.IntN(len(b.all))]
					switch what := random.IntN(8); {
					case p.stopped:
					case what < 4 && len(p.wants) < 3:
						p.wants = append(p.wants, 1+random.Int64N(4))
						b.ask(p, 0)
					case what < 6 && b.held > 0:
						b.ask(p, 1+random.Int64N(b.held))
					case what == 6 && len(p.wants) > 0:
						p.wants = p.wants[1:]
						b.ask(p, 0)
					default:
						b.pass(time.Duration(random.IntN(1500)) * time.Millisecond)
					}
					if random.IntN(4) == 0 { // some others are stopped now
						for _, p := range b.all {
							p.stopped = false
						}
						for _, i := range random.Perm(len(b.all))[:stopped] {
							b.all[i].stopped = true
						}
					}
				}
				b.pass(within)
				b.awake()
			}
		})
	}
}

// However many processes are stopped, and wherever they are in line, each costs the others one reservation time at most.
func TestSemaphoreManyStopped(t *testing.T) {
	t.Parallel()
	for _, before := range []int{1, 2, 3, 5, 8, 12, 20} {
		for _, behind := range []int{0, before} {
			t.Run(fmt.Sprintf("%d, %d", before, behind), func(t *testing.T) {
				t.Parallel()
				b := &bed{sem: sharedSem(t), began: time.Now()}
				b.set(0)
				for i := range before + 1 + behind {
					p := &sleeper{id: i + 1, ear: b.process(i + 1), wants: []int64{int64(1 + i%3)}, stopped: i != before}
					b.all = append(b.all, p)
					b.ask(p, 0)
				}
				a := b.request(99)
				a.Keep, a.N = sleepKeep, 2
				sent := b.now()
				b.use(a)
				b.hear(sent)
				live, began := b.all[before], b.passed
				live.wants[0] = min(live.wants[0], 2)
				for len(live.wants) > 0 && b.passed < began+5*time.Minute {
					b.pass(max(live.due-b.now(), time.Millisecond)) // nothing happens before
				}
				bound := time.Duration(before+behind) * (sleepKeep + 100*time.Millisecond) // see late in line.lua
				require.True(t, b.passed-began <= bound, "%v", b.passed-began)
			})
		}
	}
}

// A stopped process that wants more than there is blocks the others for a reservation time. While it lives, it shows that.
func TestSemaphoreStoppedBeforeOthers(t *testing.T) {
	t.Parallel()
	b := &bed{sem: sharedSem(t), began: time.Now()}
	b.set(1)
	large := &sleeper{id: 1, ear: b.process(1), wants: []int64{5}}
	small := &sleeper{id: 2, ear: b.process(2), wants: []int64{1}}
	b.all = []*sleeper{large, small}
	b.ask(large, 0)
	require.True(t, large.due >= minute, "it is in nobody's way")
	b.pass(5 * time.Second)
	b.ask(small, 0)
	b.pass(time.Minute)
	b.line(1, 2)
	require.NotEmpty(t, small.wants, "first come, first served")
	large.stopped = true
	b.pass(sleepKeep)
	require.Empty(t, small.wants)
	b.line()
}
