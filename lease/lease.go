package lease

import (
	"errors"
	"math"
	"time"
)

var (
	// ErrRefused is for a [RenewFunc] to return, also wrapped, when the store answered that it will not carry out the
	// call, which may be because of one of its items.
	ErrRefused = errors.New("lease: renewal refused")

	// ErrFailed is the error of a lease whose last renewal was answered with the verdict Failed. It has no prefix, since
	// it ends somebody's sentence about a loss.
	ErrFailed = errors.New("refused for now")
)

// Item names one hold to the renew function.
type Item struct {
	Name, Owner string

	// Lease is what is left of a guarded lease, see [Lease.Guard], or the ttl of the call, if that is longer and the lease is renewed.
	// 0, as a Keeper leaves it: the ttl.
	Lease time.Duration
}

// Keeper is whoever keeps a lease: its names in the store, and whom to tell.
type Keeper interface {
	// Item names the hold. Leases whose groups are equal, which may be any comparable values, may share a call. Both
	// are constant, and must not call the Renewer.
	Item() Item
	Group() any

	// Lost is called at most once, on the renewer's goroutine or on one that calls CatchUp. It must not block, since
	// everyone's losses and renewals wait for it, but it may call any method except CatchUp and Close.
	Lost(Loss)

	// Closed is called at most once, and not if Lost was, by the Close of a Renewer that keeps the lease. It must
	// not block either. Like a loss, it may cross with Stop.
	Closed()
}

// Loss is why, and since when, a lease cannot be trusted any more.
type Loss struct {
	Gone    bool      // the store said that the owner does not hold the name; otherwise the trusted time ended
	Limit   bool      // that was the one set by Renewer.Limit
	Until   time.Time // the end of the trusted time, or when the store said it
	Renewed bool      // it was to be renewed, or would have been but for Releasing

	// Err is what the last renewal that failed said, as the RenewFunc returned it, or ErrFailed; nil if none has failed
	// since the last success. If the lease was never sent, because its group gets no answer, it is what the group's
	// last call said.
	Err error
}

// Verdict is what became of one item of a renew call.
type Verdict int8

const (
	Failed  Verdict = iota // not known, or refused for now: try again until the trusted time ends
	Renewed                // expiry extended by the ttl of the call
	Gone                   // the store says that the owner does not hold the name any more
)

// Lease is the state of one hold. The zero value is ready for [Renewer.Keep]; it serves one hold, of one Renewer, and
// must not be copied after Keep. It is meant to be embedded by value in whatever stands for the hold.
//
// All fields are guarded by the mutex of the Renewer.
type Lease struct {
	_ noCopy

	keeper Keeper

	until time.Duration // trusted time, since the renewer's epoch
	limit time.Duration // its end at the latest; 0: none

	g          *group   // resolved when it is due for the first time, and anew when its ttl has changed
	next, prev *Lease   // neighbours in the queue of g that it is in
	failure    *failure // of its last renewal; nil if that succeeded

	pos     [2]int32 // places in the heaps, see heap.pos
	ttl     millis   // of its renewals; 0: it is not renewed
	state   state
	place   place
	guarded bool  // see Guard
	tries   uint8 // renewals that failed since one succeeded, up to maxTries
}

// millis is a ttl in as little room as there is: whole milliseconds, up to 49 days. Renewals that are asked to last longer do so for 49 days.
type millis uint32

func toMillis(ttl time.Duration) millis { return millis(min(ttl/time.Millisecond, math.MaxUint32)) }

func (m millis) duration() time.Duration { return time.Duration(m) * time.Millisecond }

// failure is what became of a call that renewed nothing. All its leases point to it, so that a lease needs no room for
// an error of its own. It does not change.
type failure struct {
	err     error
	refused bool // the store answered, see ErrRefused
}

var failedVerdict = &failure{err: ErrFailed}

// Guard is for a lease whose expiry others may shorten in the store, by mistake. As long as it is kept, the store is told every third of
// its ttl, or of Options.Watchdog if it is not renewed, what is left of it, also if its trusted time is longer than a renewal would make it. That
// makes it no longer. It is called before [Renewer.Keep].
func (l *Lease) Guard() { l.guarded = true }

// upTo returns the instant at, or the limit, if that is earlier.
func (l *Lease) upTo(at time.Duration) time.Duration {
	if l.limit > 0 {
		return min(at, l.limit)
	}
	return at
}

// atLimit reports whether no renewal can make the trusted time longer.
func (l *Lease) atLimit() bool { return l.limit > 0 && l.until >= l.limit }

// isKept reports whether l may be renewed and lost.
func (l *Lease) isKept() bool { return l.state == given || l.state == kept }

// alone reports whether l is to be sent in a call of its own: its last renewal was refused.
func (l *Lease) alone() bool { return l.failure != nil && l.failure.refused }

// state is the way of a lease: downwards, and never back.
type state uint8

const (
	idle      state = iota
	given           // as kept, but for the shorter time of KeepShort, and not renewed yet
	kept            // in the heap of ends; may be lost
	releasing       // as kept, but not renewed any more, see Renewer.Releasing
	gone            // as kept, but the store has said Gone, which has not been passed on yet
	ended           // lost or stopped
)

// place is where a lease waits for its next renewal: always in one place, so no lease is in two calls at once.
type place uint8

const (
	nowhere place = iota // not to be renewed
	resting              // in Renewer.dues, and in the queue resting of its group if it has one
	queued               // in the queue failed or due of its group
	inCall               // in a call in flight
)

// noCopy lets go vet find copies.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}
