package faults

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// histPlan is the plan for the workers of a run. Other processes get it as JSON.
type histPlan struct {
	Addr     string   // of the server, or of a proxy in front of it
	Messages string   // if set, the address of the server with the subscriptions, a replica
	Dir      string   // directory of the witness's files
	Kind     string   // of the locks: "", histRW or histFair
	Names    []string // of the locks
	Fenced   []string // names with fencing tokens
	Unguard  []string // names whose keys may be deleted: no witness
	Workers  int
	First    int // number of the first worker
	Seed     uint64
	Watchdog time.Duration
	Pause    time.Duration // average duration of a section
	HandOff  rlock.HandOff // the bounds of this client, see histBounds
	Along    int           // percentage of exported holds
	Spoken   bool          // use WithAsked and WithLinger, at random
	Sabotage string        // see histWorker
}

func (p histPlan) options() rlock.Options {
	return rlock.Options{WatchdogTimeout: p.Watchdog, HandOff: p.HandOff, Trace: &rlock.Trace{
		Acquired: func(ctx context.Context, info rlock.AcquiredInfo) {
			if info.Path == rlock.PathReentry && p.Kind != histRW {
				histReentered.Store(ctx, true)
			}
			if info.Path == rlock.PathKept {
				histHadAgain.Store(ctx, true)
			}
		},
	}}
}

// histTally counts events, so that a test can require them.
type histTally struct {
	Sections, Nested, Refused, Cancelled, Lost, Failed int64
	Inside, Beside, Escaped, Sticky                    int64 // see crowd, escape and failed
	HandOffs                                           histHandOffs
	Exported, Moved                                    int64            // sections exported, and those of them adopted by another worker
	Asked, Kept                                        int64            // see spoken
	Granted                                            int64            // holds begun by another process's grant, without a command
	Torn                                               int64            // reads of the witness that saw a concurrent change
	Written                                            map[string]int64 // by the witness
	Straddled                                          map[string]int64 // writes of Written made after the loss of their lock
}

func newHistTally() histTally {
	return histTally{Written: make(map[string]int64), Straddled: make(map[string]int64)}
}
