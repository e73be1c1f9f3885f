package rlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lua"
)

var (
	// ErrNotAcquired means that the wait ended before the lock was acquired or the latch was open. If ctx ended it, the error also satisfies
	// errors.Is for ctx.Err(). If Redis had not answered, it also satisfies [ErrUnreachable]. The error is a [*NotAcquiredError].
	ErrNotAcquired = errors.New("rlock: not acquired")

	// ErrNotRun means that a Do, TryDo, [DoValue] or [TryDoValue] did not run its function, for the reason that errors.Is and errors.As find. After
	// any other result it has run.
	ErrNotRun = errors.New("rlock: the function did not run")

	// ErrUnreachable means that Redis did not answer, or was not ready to, for as long as the call tried. errors.As finds its last error, or the
	// connection's.
	ErrUnreachable = errors.New("rlock: Redis not reached")

	// ErrPending means that the change of a failed call may have been made, or may yet be: do not call it again. After any other error it was not
	// and will not be made, and calling again is safe. That holds for unlocks, [Export], ForceUnlock, and the changes of semaphores, permits and
	// latches. What a failed Lock, Acquire, Adopt or Drain may have taken is undone in the background.
	ErrPending = errors.New("rlock: may take effect (do not repeat it)")

	// ErrNotHeld means that there was nothing to unlock: it was unlocked before, or lost (then [ErrLost] as well).
	ErrNotHeld = errors.New("rlock: not held")

	// ErrLost means that a hold ended before its unlock: its lease ran out, its key was deleted, or it was forced open. Another owner may be in the
	// section. The error is, or wraps, a [*LostError].
	ErrLost = errors.New("rlock: lost")

	// ErrNotReplicated means that too few replicas confirmed a hold in time, and it was given back: see [Options].Replicas.
	ErrNotReplicated = errors.New("rlock: not replicated")

	// ErrReentry means that the ctx of a Lock [WithoutReentry] carries a hold of the lock.
	ErrReentry = errors.New("rlock: this ctx holds the lock already, and WithoutReentry rules out re-entry " +
		"(to compete with that hold, use Detach)")

	// ErrUpgrade means that a Lock of the write side would wait for the read hold in its own ctx. Unlock the reader first, or use
	// [RWMutex.Upgradeable].
	ErrUpgrade = errors.New("rlock: a reader cannot become the writer")

	// ErrExported is the [context.Cause] of a section that [Export] ended. It is not a loss: a ticket has the lock.
	ErrExported = tenure.ErrExported

	// ErrNotExported means that [Export] changed nothing, and the section continues.
	ErrNotExported = errors.New("rlock: not exported")

	// ErrTicket means that the ticket given to [Client.Adopt] was used before, has expired, belongs to another Redis, or is not a ticket.
	ErrTicket = errors.New("rlock: the ticket has no lock")

	// ErrClosed means that the Client of the call, or of the section, was closed.
	ErrClosed = errors.New("rlock: client closed")
)

// IsBusy reports whether err is [ErrNotAcquired] without [ErrUnreachable]: a wait ended while Redis answered, so somebody else has the lock as
// far as is known. With a Do, errors.Is(err, ErrNotRun) && IsBusy(err) tells its own lock from one taken inside its function.
func IsBusy(err error) bool {
	return errors.Is(err, ErrNotAcquired) && !errors.Is(err, ErrUnreachable)
}

// errLockFailed is the reason in the ErrNotHeld of a failed Lock's unlock.
var errLockFailed = errors.New("its Lock failed")

// NotAcquiredError is the [ErrNotAcquired] of a Lock, Acquire or Await.
type NotAcquiredError struct {
	Name   string        // of the lock or latch
	Waited time.Duration // from the call to its end
	// Holder is the lock's owner, as in Redis, and TTL the rest of its hold, at the last answer; zero without one. Of several readers, it is one
	// that ends early.
	Holder string
	TTL    time.Duration
	// HolderLabel is the [Options].Label of the Holder's Client; "" if it has none, or is not known yet.
	HolderLabel string
	// Count is the count of a latch, or the number of free permits, at the last answer; 0 without one, and for a lock.
	Count int64

	counter *kinds.Kind // there is no lock, but a latch or a semaphore
	seen    bool        // and Count was
	wanted  int64       // permits
	self    bool        // the holder was taken under the same ctx
	other   bool        // the hold is seen to be of another kind
	carried bool        // the holder is an open hold of the caller's ctx: of another kind or a quorum, or it would be re-entered
	causes  []error     // found by errors.Is and errors.As
	why     string      // what ended the ctx, text only: it may be the loss of another lock
}

func (e *NotAcquiredError) Error() string {
	texts := []string{prefix(e.Name) + "not acquired"}
	if e.counter == kinds.Latch {
		texts[0] = prefix(e.Name) + "not open"
	}
	if e.Waited >= time.Millisecond {
		texts[0] += " after " + e.Waited.Round(time.Millisecond).String()
	}
	left := ""
	if e.TTL > 0 {
		left = ", with " + e.TTL.Round(time.Millisecond).String() + " left"
	}
	switch {
	case errors.Is(e, ErrDeadlock): // which says who holds it
	case e.counter == kinds.Latch && e.seen:
		texts = append(texts, fmt.Sprintf("%d left to count down", e.Count))
	case e.counter != nil && e.seen:
		texts = append(texts, fmt.Sprintf("%d free of %d wanted", e.Count, e.wanted))
	case kinds.IsTicket(e.Holder):
		texts = append(texts, "exported as "+e.Holder+left+", and not adopted yet")
	case kinds.IsPlaceholder(e.Holder):
		texts = append(texts, "unlocked by "+e.Holder+", and kept by its WithMinHold"+left)
	case e.carried:
		texts = append(texts, "held under this ctx as "+e.Holder+left+
			", by a lock of another kind or by a quorum (lock that one again, or give each its own name)")
	case e.other:
		texts = append(texts, "held by "+e.holder()+left+", by a lock of another kind (give each its own name)")
	case e.self:
		texts = append(texts, "held by this client as "+e.Holder+left+" (if this caller has it, use the ctx that its Lock returned)")
	case e.Holder != "":
		texts = append(texts, "held by "+e.holder()+left)
	}
	for _, cause := range e.causes {
		texts = append(texts, oneLine(e.Name, cause))
	}
	if e.why != "" {
		texts = append(texts, e.why)
	}
	return strings.Join(texts, ": ")
}

// holder is the owner behind its label.
func (e *NotAcquiredError) holder() string {
	if e.HolderLabel == "" {
		return e.Holder
	}
	return fmt.Sprintf("%q (%s)", e.HolderLabel, e.Holder)
}

// sameHolder has e name the holder that err does, if that is a refusal, and say that Redis has not answered if err does.
func (e *NotAcquiredError) sameHolder(err error) {
	var silence *unreachableError
	if errors.As(err, &silence) {
		e.causes = append(e.causes, silence)
	}
	var last *NotAcquiredError
	if errors.As(err, &last) {
		e.Holder, e.TTL, e.self, e.other, e.carried = last.Holder, last.TTL, last.self, last.other, last.carried
		e.HolderLabel = last.HolderLabel
	}
}

// Is serves errors.Is.
func (e *NotAcquiredError) Is(target error) bool { return target == ErrNotAcquired }

// Unwrap returns ctx.Err() and its cause if ctx ended the wait, and [ErrUnreachable] if Redis did not answer.
func (e *NotAcquiredError) Unwrap() []error { return e.causes }

// LossReason is the reason why a hold was lost.
type LossReason int8

const (
	// LostExpired: no renewal succeeded in time, or the lease was fixed.
	LostExpired LossReason = iota + 1
	// LostGone: the owner no longer has the lock in Redis, though its lease had not ended. It was deleted, evicted, forced open, or lost by a
	// failover.
	LostGone
	// LostMaxHold: the hold reached its [WithMaxHold].
	LostMaxHold
	// LostClosed: the Client was closed. The hold stays in Redis until its unlock, or until its lease expires.
	LostClosed
)

// LostError is the [context.Cause] of a section whose hold ended before its unlock. It satisfies errors.Is for [ErrLost]; with the reason
// LostClosed for [ErrClosed] instead, because nobody else can be in the section before the lease ends.
type LostError struct {
	Name   string // of the lock
	Owner  string // as in Redis; of a permit its id
	Reason LossReason
	Since  time.Time // when the lease ended, or when the loss was noticed

	text string
	err  error // of the last renewal, if that caused the loss
	late bool  // it was over before its Lock was answered
}

func (e *LostError) Error() string { return prefix(e.Name) + e.text }

func newLostError(l tenure.Loss) error {
	return &LostError{Name: l.Name, Owner: l.Owner, Reason: LossReason(l.Reason), Since: l.Since, text: l.Text, err: l.Err, late: l.Late}
}

// Is serves errors.Is.
func (e *LostError) Is(target error) bool {
	if e.Reason == LostClosed {
		return target == ErrClosed
	}
	return target == ErrLost
}

// Unwrap returns the error of the last renewal, if that failed.
func (e *LostError) Unwrap() error { return ofNoContext(e.err) }

// lockError is any other error of a call on a lock. errors.Is and errors.As find its causes.
type lockError struct {
	name   string
	causes []error
}

func newLockError(name string, causes ...error) error { return &lockError{name: name, causes: causes} }

func (e *lockError) Error() string {
	causes := e.causes
	if len(causes) == 2 && errors.Is(causes[0], ErrNotHeld) && errors.Is(causes[1], ErrLost) {
		causes = causes[1:] // "lost" says that it is not held
	}
	texts := make([]string, len(causes))
	for i, cause := range causes {
		texts[i] = oneLine(e.name, cause)
	}
	return prefix(e.name) + strings.Join(texts, ": ")
}

func (e *lockError) Unwrap() []error { return e.causes }

// readOnlyCure says how to leave a replica for good. A Client of Open dials anew by itself, which helps if its address leads elsewhere by then.
const readOnlyCure = " (a replica, maybe a former master: name the sentinels or the cluster's nodes; behind one address have the balancer " +
	"end its old sessions, or set ConnLifetime, or let rlock.Open connect)"

// unreachableError is ErrUnreachable with the last error of Redis or the connection.
type unreachableError struct{ cause error }

func (e *unreachableError) Error() string {
	text := ErrUnreachable.Error() + ": " + e.cause.Error()
	var redisErr *rueidis.RedisError
	if errors.As(e.cause, &redisErr) && strings.HasPrefix(lua.Said(redisErr), "READONLY") {
		return text + readOnlyCure
	}
	return text + calls.Cure(e.cause)
}

func (e *unreachableError) Is(target error) bool { return target == ErrUnreachable }

// Unwrap returns the error of Redis or the connection.
func (e *unreachableError) Unwrap() error { return ofNoContext(e.cause) }

// ofNoContext hides a connection timeout that errors.Is would mistake for the end of a ctx.
func ofNoContext(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// unreachable turns err into an ErrUnreachable, unless it is a final answer from Redis.
func unreachable(err error) error {
	switch {
	case errors.Is(err, lua.ErrForeign):
		return fmt.Errorf("%w; give the lock a name that no other data uses", err)
	case errors.Is(err, lua.ErrNoCounter):
		return fmt.Errorf("%w; give it a name that no other data uses", err)
	case errors.Is(err, lua.ErrNoScripts):
		return fmt.Errorf("%w; every lock needs EVALSHA and EVAL: see that the server has them, ACLs allow them, "+
			"and a proxy before it passes them on", err)
	case err == nil:
		return nil
	case !calls.IsTransient(err):
		if cure := calls.Cure(err); cure != "" {
			return fmt.Errorf("%w%s", err, cure)
		}
		return err
	}
	return &unreachableError{err}
}

// notAcquired returns the error of a wait that its ctx or its time limit ended.
func notAcquired(ctx context.Context, name string, began time.Time, causes ...error) *NotAcquiredError {
	e := &NotAcquiredError{Name: name, Waited: time.Since(began), causes: causes}
	err := ctx.Err()
	if err == nil {
		return e
	}
	e.causes = append([]error{err}, causes...)
	if cause := context.Cause(ctx); !errors.Is(err, cause) {
		e.why = flat(cause)
		if !isOurs(cause) {
			e.causes, e.why = append(e.causes, cause), ""
		}
	}
	return e
}

func newNotAcquired(u tenure.NotAcquired) error {
	e := notAcquired(u.Ctx, u.Name, u.Began, u.Causes...)
	e.Holder, e.HolderLabel, e.TTL, e.self, e.other, e.carried = u.Holder, u.Label, u.TTL, u.Self, u.Other, u.Carried
	e.counter, e.seen, e.wanted, e.Count = u.Counter, u.Seen, u.Wanted, u.Count
	return e
}

// isOurs reports whether err is about a lock. Such a cause appears in the text only: errors.Is must not match the loss of another lock.
func isOurs(err error) bool {
	for _, sentinel := range []error{
		ErrNotAcquired, ErrUnreachable, ErrNotHeld, ErrLost, ErrNotReplicated, ErrReentry, ErrUpgrade, ErrClosed, ErrExported, ErrNotExported,
		ErrTicket, ErrDeadlock, ErrPending,
	} {
		if errors.Is(err, sentinel) {
			return true
		}
	}
	return errors.Is(err, tenure.ErrUnlocked)
}

type sectionError struct{ lock, section error }

func (e *sectionError) Error() string {
	return flat(e.lock) + "; the section returned: " + flat(e.section)
}
func (e *sectionError) Unwrap() []error { return []error{e.lock, e.section} }

// manyError is the error of an unlock of several locks.
type manyError struct{ errs []error }

func (e *manyError) Error() string {
	const most = 4
	var texts []string
	for i, err := range e.errs {
		if i == most {
			texts = append(texts, fmt.Sprintf("and %d more", len(e.errs)-most))
			break
		}
		texts = append(texts, strings.TrimPrefix(flat(err), "rlock: "))
	}
	return "rlock: " + strings.Join(texts, "; ")
}

func (e *manyError) Unwrap() []error { return e.errs }

// joinErrors returns the error of a Do, from the errors of its section and its lock.
func joinErrors(lock, section error) error {
	switch {
	case lock == nil:
		return section
	case section == nil:
		return lock
	}
	var inner, outer *LostError
	if errors.As(section, &inner) && errors.As(lock, &outer) && inner == outer {
		return section // already reported by a Do inside this one
	}
	return &sectionError{lock, section}
}

func prefix(name string) string { return "rlock: " + tenure.Quote(name) + ": " }

// oneLine returns the text of cause on one line, without the prefixes that an error of lock name already has.
func oneLine(name string, cause error) string {
	return strings.TrimPrefix(strings.TrimPrefix(flat(cause), prefix(name)), "rlock: ")
}

func flat(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
