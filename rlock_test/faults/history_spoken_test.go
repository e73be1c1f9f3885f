package faults

import (
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// Histories of holds that receive messages: asked holds and kept locks.

// spoken draws whether a Lock uses WithAsked, and whether its lock may be kept after the unlock.
func (w *histWorker) spoken() (o []rlock.Option, keeps bool) {
	if !w.plan.Spoken {
		return nil, false
	}
	if w.chance(40) {
		o = append(o, rlock.WithAsked())
	}
	if keeps = w.chance(40); keeps {
		o = append(o, rlock.WithLinger(time.Millisecond+w.duration(w.plan.Watchdog).Truncate(time.Millisecond)))
	}
	return o, keeps
}

// isAsked reports whether an asked section has a waiter, and counts it.
func (w *histWorker) isAsked(h *histHold) bool {
	select {
	case <-rlock.Asked(h.ctx):
		w.did(asked)
		return true
	default: // no waiter, or a Lock without WithAsked
		return false
	}
}

// spokenFaults are the faults of messages to holders, with the ranges of their durations.
func spokenFaults(watchdog time.Duration) map[string]mixRange {
	const ms = time.Millisecond
	return map[string]mixRange{
		"cut ear":          {200 * ms, 800 * ms},
		"deaf ear":         {200 * ms, watchdog * 3 / 2},
		"late ear":         {100 * ms, watchdog * 3 / 2},
		"doubled ear":      {200 * ms, 800 * ms},
		"lost speech":      {200 * ms, 800 * ms},
		"late speech":      {100 * ms, watchdog * 3 / 2},
		"unknown speech":   {200 * ms, 800 * ms},
		"forbidden speech": {200 * ms, 800 * ms},
	}
}
