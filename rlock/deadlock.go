package rlock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/internal/engine"
)

// Deadlock has a Client look for deadlocks: sections whose Locks wait for each other. The zero value is off.
//
// A Lock that has waited for After, and whose ctx carries holds, looks for a cycle: it waits for the hold of a section, in which a Lock waits for the
// hold of another one, and so on until a section of its own. The cycle may lead through all Clients of the process that have the option, whichever Redis
// they use, through those of other processes, which speak to each other, and through locks of all kinds but [Quorum] and semaphores. Readers count, all of those for which a writer waits, as do readers that stand
// behind a waiting writer. An [All] counts with what its ctx carries, and not with its members, for it holds none of them while it waits.
//
// Each deadlock has one victim: the Lock that began to wait last. It finds the deadlock when it has waited for After; between processes after two
// messages more for each of them. What follows is up to Action.
//
// A section counts as waiting while any Lock under its ctx waits: use [Detach] for goroutines that are started there, and that it does not wait for. A
// TryLock with time left counts as any other Lock.
//
// A Lock whose ctx carries no hold costs nothing; one that carries some has a timer. After that time it asks Redis who has the lock, unless the process
// knows of a deadlock, and speaks to their processes, and again after pauses that double, up to 30 s. From then on the Client has one subscription more, as
// for [WithAsked]; for users that ACLs limit see docs/protocol.md.
type Deadlock struct {
	// After is for how long a Lock waits before it looks. 0 means never; less than a millisecond is an error. A second is much longer than most waits.
	After  time.Duration
	Action DeadlockAction
}

// DeadlockAction is what becomes of the victim of a deadlock.
type DeadlockAction int8

const (
	// DeadlockReport has the Logger and [Trace].Deadlock told, once. The victim waits on.
	DeadlockReport DeadlockAction = iota
	// DeadlockFail has the Lock of the victim return a [*DeadlockError], so that its section can end, which lets the others in.
	DeadlockFail
)

// ErrDeadlock means that a Lock was the victim of a deadlock, see [Options].Deadlock. The error wraps a [*DeadlockError], and satisfies errors.Is
// for [ErrNotAcquired], too.
var ErrDeadlock = errors.New("rlock: deadlock")

// DeadlockError describes a deadlock in one line. It is found by errors.As in what the Lock of the victim returned, and given to [Trace].Deadlock.
type DeadlockError struct {
	Name string // of the lock for which the victim waits
	// Cycle are the Locks that wait for each other: each for what the section of the next one holds, the last for that of the first, which is the victim.
	Cycle []DeadlockWait
}

// DeadlockWait is a Lock in a deadlock, and a hold of its section.
type DeadlockWait struct {
	Host   string // of its process, and the number that it has there
	PID    int
	Client string // what [Client.ID] returns

	Holds string    // the name of the lock for which the one before it waits
	Owner string    // of that hold, as it is written in Redis
	Since time.Time // when that hold began

	WaitsFor     string // the name of a lock
	WaitingSince time.Time
}

// Error names the waits of the cycle, the victim first.
func (e *DeadlockError) Error() string {
	waits := make([]string, len(e.Cycle))
	for i, w := range e.Cycle {
		waits[i] = w.String()
	}
	return prefix(e.Name) + "deadlock: " + strings.Join(waits, "; ")
}

// String says who holds what, and waits for what.
func (w DeadlockWait) String() string {
	const layout = "2006-01-02T15:04:05.000Z07:00"
	return fmt.Sprintf("%s (pid %d, client %s) holds %s since %s and waits for %s since %s", w.Host, w.PID, w.Client,
		engine.Quote(w.Holds), w.Since.Format(layout), engine.Quote(w.WaitsFor), w.WaitingSince.Format(layout))
}

// Is reports whether target is ErrDeadlock or ErrNotAcquired.
func (e *DeadlockError) Is(target error) bool {
	return target == ErrDeadlock || target == ErrNotAcquired
}

func isDeadlock(err error) bool { return errors.Is(err, ErrDeadlock) }

// newDeadlockError is that of a cycle which the engine has found.
func newDeadlockError(name string, cycle []deadlock.Step) error {
	e := &DeadlockError{Name: name}
	for _, s := range cycle {
		e.Cycle = append(e.Cycle, DeadlockWait{
			Host: s.Host, PID: s.PID, Client: s.Client,
			Holds: s.Holds.Name, Owner: s.Holds.Owner, Since: s.Holds.Since,
			WaitsFor: s.Lock, WaitingSince: s.WaitsBy,
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

// forEngine are the terms of the engine. They have been validated.
func (d Deadlock) forEngine(rdb rueidis.Client) engine.DeadlockTerms {
	if d.After == 0 {
		return engine.DeadlockTerms{}
	}
	return engine.DeadlockTerms{After: d.After, Fail: d.Action == DeadlockFail, Graph: deadlock.Of(rdb)}
}
