package engine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/deadlock"
)

// Errors are those that callers get: what they look for with errors.Is, and how the ones that say more are made. All are set.
type Errors struct {
	Closed, Lost, NotHeld, NotReplicated, Reentry, Upgrade, NotExported, Ticket, Deadlock error

	Loss        func(Loss) error                               // satisfies Lost, or Closed if that is the reason
	NotAcquired func(NotAcquired) error                        // of a wait that ended
	Cycle       func(name string, cycle []deadlock.Step) error // satisfies Deadlock; the first step is the wait of the lock called name
	Unreachable func(error) error                              // of what Redis, or the way to it, said last
	// Failed makes any other error of the lock called name. errors.Is and errors.As find the causes.
	Failed func(name string, causes ...error) error
}

// Loss says why a hold ended before its unlock.
type Loss struct {
	Name, Owner string
	Reason      LostReason
	Since       time.Time
	Text        string // what is to be said behind the name
	Err         error  // what the last renewal failed with, if that was why
}

// LostReason is what ended a hold.
type LostReason int8

const (
	LostExpired LostReason = iota // the lease ended
	LostGone                      // Redis does not have it
	LostMaxHold                   // the longest hold was reached
	LostClosed                    // the engine was closed
)

// NotAcquired says how a wait ended without the lock.
type NotAcquired struct {
	Ctx    context.Context // of the caller; maybe it ended the wait
	Name   string
	Began  time.Time
	Causes []error

	Holder  string  // the owner that has the lock, as far as is known
	Label   string  // of its Client
	Labels  *Engine // that knows the label, or may
	TTL     time.Duration
	Self    bool // the holder was taken under the same ctx
	Other   bool // the hold is seen to be of another kind
	Carried bool // the holder is an open hold of the caller's ctx

	Counter CounterKind
	Seen    bool  // of a counter: there was an answer
	Count   int64 // of the last one: of a latch, or free permits
	Wanted  int64 // permits
}

// CounterKind says which kind of counter it was, that nobody holds.
type CounterKind int8

const (
	NoCounter CounterKind = iota // a lock
	LatchCounter
	Permits
)

// ErrUnlockedBefore is behind NotHeld.
var ErrUnlockedBefore = errors.New("unlocked before")

// ErrUnlocked is found in the cause of a section that was unlocked.
var ErrUnlocked = fmt.Errorf("rlock: unlocked: %w", context.Canceled)

// unlockedError is the [context.Cause] of a section that was unlocked. The unlock may find out afterwards that
// the hold was lost before; from then on it passes for that loss.
type unlockedError struct {
	name *string // of the lock
	loss atomic.Pointer[error]
}

func (e *unlockedError) Error() string {
	if loss := e.Unwrap(); loss != nil {
		return loss.Error()
	}
	return "rlock: " + Quote(*e.name) + ": unlocked"
}

func (e *unlockedError) Is(target error) bool {
	return target == ErrUnlocked || target == context.Canceled
}

func (e *unlockedError) Unwrap() error {
	if loss := e.loss.Load(); loss != nil {
		return *loss
	}
	return nil
}

// Quote shortens names that would fill a log.
func Quote(name string) string {
	const most = 128
	if len(name) <= most {
		return strconv.Quote(name)
	}
	return fmt.Sprintf("%q… (%d bytes)", name[:most], len(name))
}
