package faults

import (
	"github.com/anishathalye/porcupine"

	"github.com/go-rlock/rlock/rlock"
)

// The data of a run about the kind of its locks.

func (p histPlan) model() porcupine.Model {
	if p.Kind == histRW {
		return rwModel
	}
	return histModel
}

// mutex returns a handle on a lock of that kind, which excludes all others.
func (p histPlan) mutex(c *rlock.Client, name string) *rlock.Mutex {
	switch p.Kind {
	case histRW:
		return c.RWMutex(name).Write()
	case histFair:
		return c.FairMutex(name)
	}
	return c.Mutex(name)
}

// goroutines is how many a client has, whatever its callers do: the renewer and the subscription, and that which keeps the places in
// fair queues; and the two of an ear.
func (p histPlan) goroutines() int {
	if p.Spoken {
		return 4
	}
	if p.Kind == histFair {
		return 3
	}
	return 2
}
