package rlock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/internal/tenure"
)

// Deadlock configures a Client's search for deadlocks: sections whose Locks wait for each other. The zero value is off.
//
// A Lock that has waited for After, and whose ctx carries holds, looks for a cycle of waits back to its own section, through all Clients that
// have the option, in any process and on any Redis. Its victim is the Lock that began to wait last. docs/features.md has the cost, the times and
// the limits.
type Deadlock struct {
	// After is how long a Lock waits before it looks. 0 means never; less than 1 ms is an error.
	After  time.Duration
	Action DeadlockAction
}

// DeadlockAction is what happens to the victim of a deadlock.
type DeadlockAction int8

const (
	// DeadlockReport reports the deadlock once, to the Logger and [Trace].Deadlock. The victim continues to wait.
	DeadlockReport DeadlockAction = iota
	// DeadlockFail makes the victim's Lock return a [*DeadlockError]. When its section ends, the others get in.
	DeadlockFail
)

// ErrDeadlock means that a Lock was the victim of a deadlock, see [Options].Deadlock. The error wraps a [*DeadlockError], and satisfies
// [ErrNotAcquired].
var ErrDeadlock = errors.New("rlock: deadlock")

// DeadlockError describes a deadlock in one line. errors.As finds it in the error of the victim's Lock.
type DeadlockError struct {
	Name string // of the lock for which the victim waits
	// Cycle are the waiting Locks, the victim first. Each waits for a hold of the next one's section, the last for the victim's.
	Cycle []DeadlockWait
}

// DeadlockWait is a Lock in a deadlock, and a hold of its section.
type DeadlockWait struct {
	Host   string // and PID: the process of the Lock
	PID    int
	Client string // the [Client.ID] of its Client
	Label  string // that Client's [Options].Label; "" without one, or in a very long cycle

	Holds string    // the lock for which the one before it waits
	Owner string    // of that hold, as in Redis
	Since time.Time // when that hold began

	WaitsFor     string // a lock
	WaitingSince time.Time
}

func (e *DeadlockError) Error() string {
	waits := make([]string, len(e.Cycle))
	for i, w := range e.Cycle {
		waits[i] = w.String()
	}
	return prefix(e.Name) + "deadlock: " + strings.Join(waits, "; ") + " (keep one order, or take them together with All)"
}

// String describes the wait in words.
func (w DeadlockWait) String() string {
	const layout = "2006-01-02T15:04:05.000Z07:00"
	who := w.Host
	if w.Label != "" {
		who = fmt.Sprintf("%q on %s", w.Label, w.Host)
	}
	return fmt.Sprintf("%s (pid %d, client %s) holds %s since %s and waits for %s since %s", who, w.PID, w.Client,
		tenure.Quote(w.Holds), w.Since.Format(layout), tenure.Quote(w.WaitsFor), w.WaitingSince.Format(layout))
}

// Is serves errors.Is.
func (e *DeadlockError) Is(target error) bool {
	return target == ErrDeadlock || target == ErrNotAcquired
}

func newDeadlockError(name string, cycle []deadlock.Step) error {
	e := &DeadlockError{Name: name}
	for _, s := range cycle {
		e.Cycle = append(e.Cycle, DeadlockWait{
			Host: s.Host, PID: s.PID, Client: s.Client, Label: s.Label,
			Holds: s.Name, Owner: s.Owner, Since: s.Since.Time,
			WaitsFor: s.Lock, WaitingSince: s.WaitsBy.Time,
		})
	}
	return e
}

func (d Deadlock) validate() error {
	switch {
	case d.After != 0 && d.After < time.Millisecond:
		return fmt.Errorf("rlock: Options.Deadlock.After is %v, want 0 or at least 1ms", d.After)
	case d.Action != DeadlockReport && d.Action != DeadlockFail:
		return fmt.Errorf("rlock: Options.Deadlock.Action is %d, want DeadlockReport or DeadlockFail", d.Action)
	case d.After == 0 && d.Action != DeadlockReport:
		return errors.New("rlock: Options.Deadlock has an Action and no After: set it, a second for example")
	}
	return nil
}

// terms returns the terms of a Client's search. d has been validated.
func (d Deadlock) terms(rdb rueidis.Client, label string, t *tellers) deadlock.Terms {
	if d.After == 0 {
		return deadlock.Terms{}
	}
	return deadlock.Terms{
		After: d.After, Fail: d.Action == DeadlockFail, Label: label, Graph: deadlock.Of(rdb), Cycle: newDeadlockError, Tell: t.Deadlock,
	}
}
