package faults

import (
	"github.com/anishathalye/porcupine"

	"github.com/go-rlock/rlock/rlock"
)

// The data of a run for each kind of lock.

func (p histPlan) model() porcupine.Model {
	if p.Kind == histRW {
		return rwModel
	}
	return histModel
}

// mutex returns an exclusive handle on a lock of the plan's kind.
func (p histPlan) mutex(c *rlock.Client, name string) *rlock.Mutex {
	switch p.Kind {
	case histRW:
		return c.RWMutex(name).Write()
	case histFair:
		return c.FairMutex(name)
	}
	return c.Mutex(name)
}

// goroutines is how many a client always has: one for renewals, one for the subscription, one for places in fair
// queues, and two for the ear.
func (p histPlan) goroutines() int {
	if p.Spoken {
		return 4
	}
	if p.Kind == histFair {
		return 3
	}
	return 2
}
