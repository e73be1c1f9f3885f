package calls

import "time"

const (
	// RetryWindow is how long a call is repeated after it failed for the first time, as long as its caller waits. It spans a
	// reconnect, not every failover: to wait out one that takes longer, the caller calls again.
	RetryWindow = 3 * time.Second

	// MinTries is how often an acquire is sent at least, if it fails with errors that may pass: each try may take as long as
	// RetryWindow lasts, and a cluster client that follows a failover still sends the second one to the node that is gone.
	MinTries = 3

	// MinPause and MaxPause bound the pauses between the repeats of a call, which double.
	MinPause = 10 * time.Millisecond
	MaxPause = 500 * time.Millisecond
)

// Retry spaces the repeats of a call.
type Retry struct {
	Until time.Time // no try after it; zero: no such time
	Least int       // tries, however long they take

	limit time.Time // the window ends; zero until the first failure
	tries int
	pause time.Duration
}

// Wait pauses before the next try; before the last one the pause is cut to what is left of the time. It reports false if there should be
// none: err will not pass, the time is up, or one of the channels was closed.
func (r *Retry) Wait(err error, stop1, stop2 <-chan struct{}) bool {
	if !MayPass(err) {
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
			pause = rest // the time is to be used up: its caller may have asked for it
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

// Earlier is the first of two ends.
func Earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
