package tenure

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
)

// Errors are the errors returned to callers: the sentinels for errors.Is, and constructors of the detailed errors. All are set.
type Errors struct {
	Closed, Lost, NotHeld, NotReplicated, Reentry, Upgrade, NotExported, Ticket, Pending error

	Loss        func(Loss) error        // satisfies Lost, or Closed if that is the reason
	NotAcquired func(NotAcquired) error // of a wait that ended
	Unreachable func(error) error       // wraps the last error of Redis or of the connection
	// Failed makes any other error for the named lock. errors.Is and errors.As find the causes.
	Failed func(name string, causes ...error) error
}

// Loss says why a hold ended before its unlock.
type Loss struct {
	Name, Owner string
	Reason      LostReason
	Since       time.Time
	Text        string // the text after the lock's name
	Late        bool   // its Lock was answered after the lease
	Err         error  // the last renewal's error, if that caused the loss
}

// LostReason says why a hold was lost, with the numbers of rlock.LossReason.
type LostReason int8

const (
	LostExpired LostReason = iota + 1 // the lease ended
	LostGone                          // the owner's field is missing in Redis
	LostMaxHold                       // the longest hold was reached
	LostClosed                        // the Client was closed
)

// NotAcquired says how a wait ended without the lock.
type NotAcquired struct {
	Ctx    context.Context // the caller's; its end may have ended the wait
	Name   string
	Began  time.Time
	Causes []error

	Holder  string // the owner of the lock, as far as known
	Label   string // of the holder's Client, see Client.LabelOf
	TTL     time.Duration
	Self    bool // the holder was taken under the same ctx
	Other   bool // the hold is known to be of another kind
	Carried bool // the holder is an open hold of the caller's ctx

	Counter *kinds.Kind // of a latch or a semaphore, which have no holder; nil: a lock
	Seen    bool        // for a counter: Redis has answered
	Count   int64       // from the last answer: the latch's count, or the free permits
	Wanted  int64       // permits
}

// ErrNotSent is in the errors of changes that Redis was not asked for.
var ErrNotSent = errors.New("nothing was sent")

// ErrUnlockedBefore is a cause of NotHeld errors.
var ErrUnlockedBefore = errors.New("unlocked before")

// ErrUnlocked is found in the cause of a section that was unlocked.
var ErrUnlocked = fmt.Errorf("rlock: unlocked: %w", context.Canceled)

// UnlockedError is the [context.Cause] of an unlocked section. If the unlock then finds the hold already lost, errors.Is matches that
// loss as well.
type UnlockedError struct {
	Name *string // of the lock
	Loss atomic.Pointer[error]
}

func (e *UnlockedError) Error() string {
	if loss := e.Unwrap(); loss != nil {
		return loss.Error()
	}
	return "rlock: " + Quote(*e.Name) + ": unlocked"
}

// Is reports that it is [ErrUnlocked], and the end of a ctx.
func (e *UnlockedError) Is(target error) bool {
	return target == ErrUnlocked || target == context.Canceled
}

func (e *UnlockedError) Unwrap() error {
	if loss := e.Loss.Load(); loss != nil {
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
