package engine

import (
	"time"

	"github.com/go-rlock/rlock/internal/tenure"
)

// keepsPlace records the reply's state of the waiter's place. It reports false if the place is gone.
func (l *Attempt) keepsPlace(a tenure.AcquireResult) bool {
	places := l.Lock.Client.Places()
	if !a.Joined || places == nil { // closed
		return a.Joined || l.place == nil
	}
	until := a.Sent.Add(l.Lock.Client.PlaceLease)
	if l.place != nil {
		places.Update(&l.place.Lease, until, l.Lock.Client.PlaceLease)
		return true
	}
	l.place = &tenure.PlaceKeeper{Tenure: l.Tenure}
	places.Keep(&l.place.Lease, l.place, until, l.Lock.Client.PlaceLease)
	if a.Behind {
		l.waiter.Hear()
	}
	return true
}

func (l *Attempt) leavePlace() {
	if l.place != nil {
		l.Lock.Client.Places().Stop(&l.place.Lease)
		l.place = nil
	}
}

// queuedAt returns the send time of the last call that a grant must have followed.
func (l *Attempt) queuedAt() time.Time {
	if l.place == nil || l.Tenure.Unresolved != nil && l.Tenure.Unresolved.Late {
		if l.Tenure.Queued == nil {
			return time.Time{}
		}
		return *l.Tenure.Queued
	}
	c := l.Lock.Client
	return c.Places().Until(&l.place.Lease).Add(-c.PlaceLease)
}
