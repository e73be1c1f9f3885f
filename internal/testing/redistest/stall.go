package redistest

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

const (
	// beat is how often the machine is looked at.
	beat = 50 * time.Millisecond
	// stalled is how late a timer has to be to count: a garbage collection or a busy core takes less.
	stalled = 500 * time.Millisecond
)

// stalls notes when the machine, or this process, stood still: a timer that was far too late. The bounds of tests do not count that time,
// which says nothing of the code under test.
var stalls = watchStalls()

type stallLog struct {
	mu    sync.Mutex // guards the following
	beats int        // so far
	all   []stall
}

// stall is from when a timer was due until it fired.
type stall struct{ due, fired time.Time }

// watchStalls watches until the process ends.
func watchStalls() *stallLog {
	s := new(stallLog)
	go s.watch(nil)
	return s
}

// watch runs until stop is closed.
func (s *stallLog) watch(stop <-chan struct{}) {
	for {
		due := time.Now().Add(beat)
		select {
		case <-stop:
			return
		case <-time.After(beat):
		}
		s.beat(due, time.Now())
	}
}

// beat notes a timer.
func (s *stallLog) beat(due, fired time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beats++
	if fired.Sub(due) >= stalled {
		s.all = append(s.all, stall{due, fired})
	}
}

// settle returns when a stall that is just over has been noted.
func (s *stallLog) settle() {
	beats := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.beats
	}
	for before := beats(); beats() == before; {
		time.Sleep(beat / 5)
	}
}

// between returns for how long the machine stood still between two moments.
func (s *stallLog) between(from, to time.Time) (total time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.all {
		began, ended := x.due, x.fired
		if began.Before(from) {
			began = from
		}
		if ended.After(to) {
			ended = to
		}
		total += max(0, ended.Sub(began))
	}
	return total
}

// Ran returns the time between two moments, the second of which is past, without the time for which the machine stood still. In the virtual
// world the clock stands still when the machine does. It is for upper bounds; a lower one is
// for the time on the clock.
func Ran(tb testing.TB, from, to time.Time) time.Duration {
	tb.Helper()
	took := to.Sub(from)
	if IsVirtual(tb) || took < stalled {
		return took
	}
	stalls.settle()
	still := stalls.between(from, to)
	if still > 0 {
		tb.Logf("the machine stood still for %v of %v", still.Round(time.Millisecond), took.Round(time.Millisecond))
	}
	return took - still
}

// Within returns the next value of a channel, and fails the test if none comes in time.
func Within[T any](tb testing.TB, d time.Duration, from <-chan T, what string) T {
	tb.Helper()
	began := time.Now()
	for left := d; left > 0; left = d - Ran(tb, began, time.Now()) {
		select {
		case v := <-from:
			return v
		case <-time.After(left):
		}
	}
	select { // both may be due after a pause
	case v := <-from:
		return v
	default:
		tb.Fatal(notWithin(d, what))
		panic("unreachable")
	}
}

func notWithin(d time.Duration, what string) string { return fmt.Sprintf("not within %v: %s", d, what) }
