package calls

import "time"

const (
	// RetryWindow is how long a call is retried after its first failure, while its caller waits. It spans a reconnect, but not every
	// failover: to wait out a longer failover, call again.
	RetryWindow = 3 * time.Second

	// MinTries is the minimum number of tries of an acquire with transient errors: each try may last as long as RetryWindow, and after a
	// failover a cluster client still sends the second try to the dead node.
	MinTries = 3

	// MinPause and MaxPause bound the pauses between retries, which double.
	MinPause = 10 * time.Millisecond
	MaxPause = 500 * time.Millisecond
)

// Retry spaces the retries of a call.
type Retry struct {
	Until time.Time // no try after it; zero: no such time
	Least int       // tries, however long they take

	limit time.Time // the window ends; zero until the first failure
	tries int
	pause time.Duration
}

// Wait pauses before the next try; the last pause is cut to the remaining time. It reports false if there must be no retry: err is not
// transient, the time is up, or one of the channels was closed.
func (r *Retry) Wait(err error, stop1, stop2 <-chan struct{}) bool {
	if !IsTransient(err) {
		return false
	}
	now := time.Now()
	if r.tries++; r.tries == 1 {
		r.limit, r.pause = now.Add(RetryWindow), MinPause
	}
	end := r.Until
	if r.tries >= r.Least && (end.IsZero() || r.limit.Before(end)) {
		end = r.limit
	}
	pause, last := r.pause, false
	if !end.IsZero() {
		rest := end.Sub(now)
		if last = rest <= MinPause; last {
			pause = rest // use up the time, which the caller may have asked for
		} else {
			pause = min(pause, rest-MinPause)
		}
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	r.pause = min(2*r.pause, MaxPause)
	select {
	case <-timer.C:
		return !last
	case <-stop1:
	case <-stop2:
	}
	return false
}

// At returns a channel that is ready at t, and what ends that; nil if t is zero.
func At(t time.Time) (over <-chan time.Time, stop func()) {
	if t.IsZero() {
		return nil, func() {}
	}
	timer := time.NewTimer(time.Until(t))
	return timer.C, func() { timer.Stop() }
}

// Earlier returns the earlier of two times, of which a zero one is none.
func Earlier(a, b time.Time) time.Time {
	if b.IsZero() || !a.IsZero() && a.Before(b) {
		return a
	}
	return b
}
