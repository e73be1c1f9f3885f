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

// stalls notes when the machine, or this process, stood still: a timer that was far too late. A bound that a test has exceeded then says
// nothing of the code under test.
var stalls stallLog

type stallLog struct {
	mu  sync.Mutex // guards the following
	all []stall
}

type stall struct {
	until time.Time
	late  time.Duration
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
		s.beats(due, time.Now())
	}
}

// beats notes a timer that was due, and fired now.
func (s *stallLog) beats(due, now time.Time) {
	if late := now.Sub(due); late >= stalled {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = append(s.all, stall{now, late})
	}
}

// since returns for how long the machine has stood still since then.
func (s *stallLog) since(began time.Time) (total time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.all {
		if x.until.After(began) {
			total += x.late
		}
	}
	return total
}

// blame begins the message of a bound that was exceeded, if the machine is to blame.
func (s *stallLog) blame(began time.Time) string {
	if late := s.since(began); late > 0 {
		return fmt.Sprintf("the machine stood still for %v of this time: ", late.Round(time.Millisecond))
	}
	return ""
}

// Within returns the next value of a channel, and fails the test if none comes in time.
func Within[T any](tb testing.TB, d time.Duration, from <-chan T, what string) T {
	tb.Helper()
	began := time.Now()
	select {
	case v := <-from:
		return v
	case <-time.After(d):
		tb.Fatalf("%snot within %v: %s", blame(tb, began), d, what)
		panic("unreachable")
	}
}

// blame is empty in the virtual world, whose clock stands still when the machine does.
func blame(tb testing.TB, began time.Time) string {
	if IsVirtual(tb) {
		return ""
	}
	return stalls.blame(began)
}
