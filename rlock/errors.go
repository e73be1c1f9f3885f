package rlock

import (
	"context"
	"errors"
	"strconv"
	"strings"
)

var (
	// ErrNotAcquired means that the lock was held by another until the wait ended, either the wait
	// given to [Mutex.TryLock] or the caller's context. In the second case the error satisfies
	// errors.Is for the context's error, too.
	ErrNotAcquired = errors.New("rlock: not acquired")

	// ErrNotHeld means that the caller has nothing to unlock: this unlock was called before, or the
	// hold was lost. The holds of others are unchanged.
	ErrNotHeld = errors.New("rlock: not held")

	// ErrLost means that a hold ended before its unlock: its lease ran out, somebody deleted the
	// key, or the lock was forced open. From then on another owner may be in the section.
	ErrLost = errors.New("rlock: lease lost")

	// ErrNotReplicated means that the lock could have been had, but not enough replicas confirmed it in
	// time (see [Options].Replicas), so it was given back.
	ErrNotReplicated = errors.New("rlock: not replicated")

	// ErrClosed means that the Client was closed.
	ErrClosed = errors.New("rlock: client closed")
)

// opError adds what was done to which lock. Its causes are found by errors.Is and errors.As.
type opError struct {
	op     string // "lock", "unlock", …
	name   string
	causes []error
}

func (e *opError) Error() string {
	var b strings.Builder
	b.WriteString("rlock: " + e.op + " " + quote(e.name))
	for _, cause := range e.causes {
		b.WriteString(": " + strings.TrimPrefix(cause.Error(), "rlock: "))
	}
	return b.String()
}

// quote shortens names that would fill a log.
func quote(name string) string {
	const most = 128
	if len(name) <= most {
		return strconv.Quote(name)
	}
	return strconv.Quote(name[:most]) + "… (" + strconv.Itoa(len(name)) + " bytes)"
}

func (e *opError) Unwrap() []error { return e.causes }

func (m *Mutex) fail(op string, causes ...error) error {
	return &opError{op: op, name: m.name, causes: causes}
}

// notAcquired is the error of a wait that ended, because ctx is done or a time-out passed; last, if
// any, is what went wrong when Redis was asked.
func (m *Mutex) notAcquired(ctx context.Context, last error) error {
	causes := []error{ErrNotAcquired}
	if err := ctx.Err(); err != nil {
		causes = append(causes, err)
		if cause := context.Cause(ctx); !errors.Is(err, cause) {
			causes = append(causes, cause) // say, ErrLost of the hold around this one
		}
	}
	if last != nil {
		causes = append(causes, last)
	}
	return m.fail("lock", causes...)
}
