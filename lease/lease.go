package lease

import (
	"errors"
	"time"
)

var (
	// ErrRefused is a [RenewFunc]'s error, possibly wrapped, if the store answered but refused the call. One of its
	// items may be the reason.
	ErrRefused = errors.New("lease: renewal refused")

	// ErrFailed is the error of a lease whose last renewal got the verdict Failed. It has no prefix because it ends a
	// caller's sentence about a loss.
	ErrFailed = errors.New("refused for now")
)

// Item names one hold to the renew function.
type Item struct {
	Name, Owner string

	// Lease is the time left for a guarded lease, see [Lease.Guard], or the call's ttl if that is longer and the
	// lease is renewed. 0, the value from a Keeper, means the ttl.
	Lease time.Duration
}

// Keeper is the owner of a lease: it names the hold in the store, and learns how the lease ends.
type Keeper interface {
	// Item names the hold. Leases may share a call if their groups, any comparable values, are equal. Both methods
	// return constants and must not call the Renewer.
	Item() Item
	Group() any

	// Lost is called at most once, on the renewer's goroutine or on a caller of CatchUp. It must not block, since all
	// losses and renewals wait for it, but it may call any method except CatchUp and Close.
	Lost(Loss)

	// Closed is called at most once, and never after Lost, by the Close of a Renewer that keeps the lease. It must
	// not block either. Like Lost, it may cross with Stop.
	Closed()
}

// Loss says why, and since when, a lease cannot be trusted any more.
type Loss struct {
	Gone    bool      // the store said that the owner does not hold the name; otherwise the trusted time ended
	Limit   bool      // the trusted time ended at the limit set by Renewer.Limit
	Until   time.Time // end of the trusted time, or the time of the store's answer
	Renewed bool      // the lease relied on renewals, even if Releasing had stopped them

	// Err is the error of the last failed renewal, as the RenewFunc returned it, or ErrFailed; nil if none has failed
	// since the last success. If the lease was never sent because its group gets no answer, Err is the error of the
	// group's last call.
	Err error
}

// Verdict is the outcome for one item of a renew call.
type Verdict int8

const (
	Failed  Verdict = iota // unknown, or refused for now: retried until the trusted time ends
	Renewed                // expiry extended by the ttl of the call
	Gone                   // the owner does not hold the name any more
)

// Lease is the state of one hold. The zero value is ready for [Renewer.Keep]. A Lease serves one hold of one Renewer,
// must not be copied after Keep, and is meant to be embedded by value in the caller's type for a hold.
//
// All fields are guarded by the Renewer's mutex.
type Lease struct {
	_ noCopy

	keeper Keeper

	until time.Duration // trusted time, since the renewer's epoch
	limit time.Duration // latest end of the trusted time; 0: none

	g          *group   // resolved when first due, and again after a change of ttl
	next, prev *Lease   // neighbours in its queue in g
	failure    *failure // of its last renewal; nil if that succeeded

	pos     [2]int32 // places in the heaps, see heap.pos
	ttl     millis   // of its renewals; 0: not renewed
	state   state
	place   place
	guarded bool  // see Guard
	tries   uint8 // failed renewals since the last success, up to maxTries
}

// failure is the outcome of a call that renewed nothing. All its leases point to it, so that a lease needs no room
// for an error of its own. It is immutable.
type failure struct {
	err     error
	refused bool // the store answered, see ErrRefused
}

var failedVerdict = &failure{err: ErrFailed}

// Guard is for a lease whose expiry others may shorten in the store by mistake. Every third of its ttl, or of
// Options.Watchdog if it is not renewed, the store gets the time left of it, even if that is longer than a renewal's
// ttl. This does not lengthen the lease. Call Guard before [Renewer.Keep].
func (l *Lease) Guard() { l.guarded = true }

// state is the life of a lease: downwards, never back.
type state uint8

const (
	idle      state = iota
	given           // as kept, but for the shorter time of KeepShort, and not renewed yet
	kept            // in the heap of ends; may be lost
	releasing       // as kept, but not renewed any more, see Renewer.Releasing
	gone            // as kept, but the store has answered Gone, which is not reported yet
	ended           // lost or stopped
)

// place says where a lease waits for its next renewal. It has only one place, so it is never in two calls at once.
type place uint8

const (
	nowhere    place = iota // not to be renewed
	resting                 // in Renewer.dues, and in its group's resting queue if it has a group
	queued                  // in its group's failed or due queue
	inCall                  // in a call in flight
	inCallSoon              // in one, and due at once when that has renewed it, see Renewer.Soon
)

// noCopy lets go vet find copies.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}
