package rlock

import (
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/tenure"
)

// throughOutages makes attempts until one ends otherwise than by Redis's silence, or the caller's time is over. Without [WithWaitForRedis]
// it makes one. The engine itself goes on where it has a place in line to keep; here is the rest.
func throughOutages[T any](who tenure.Caller, m *tenure.Lock, attempt func(tenure.Caller) (T, error)) (T, error) {
	if !who.Persists {
		return attempt(who)
	}
	if m.Client.Calls.Start() { // Close waits for all of them together
		defer m.Client.Calls.Ended()
	}
	var pause outagePause
	for {
		began := time.Now()
		v, err := attempt(who)
		if !isOutage(err, wasSilent(began, 2)) { // two calls, where a reader may upgrade
			return v, err
		}
		if !pause.wait(who, m.Client.Shut) {
			return v, notAcquired(who.Ctx, m.Name, who.Began, err)
		}
	}
}

// isOutage reports whether another attempt may succeed when Redis answers again. An error that is ErrNotAcquired as well says that the time
// is over. A lease that is over before the answer, although Redis was not silent, is too short for this network.
func isOutage(err error, silent bool) bool {
	var loss *LostError
	if errors.As(err, &loss) {
		return loss.late && silent
	}
	return errors.Is(err, ErrUnreachable) && !errors.Is(err, ErrNotAcquired) && !errors.Is(err, ErrClosed)
}

// wasSilent reports whether n calls since then have taken too long for a Redis that answers.
func wasSilent(since time.Time, n int) bool {
	return time.Since(since) >= time.Duration(n)*calls.UnresponsiveAfter
}

// outagePause spaces attempts, each of which has lasted for some seconds, unless Redis refuses connections.
type outagePause struct{ last time.Duration }

// wait returns false if the caller's time ended first.
func (p *outagePause) wait(who tenure.Caller, shut <-chan struct{}) bool {
	p.last = min(max(calls.MinPause, 2*p.last), calls.MaxPause)
	pause := p.last
	if !who.Limit.IsZero() {
		pause = min(pause, time.Until(who.Limit))
	}
	if calls.IsClosed(shut) {
		shut = nil // a quorum goes on without one of its Clients
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-shut: // the next attempt says so
	case <-who.Ctx.Done():
	case <-who.Stopped():
	}
	return who.GoesOn()
}
