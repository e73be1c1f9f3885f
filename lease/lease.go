package lease

import (
	"errors"
	"time"
)

var (
	// ErrExpired is the reason of a loss when the trusted time has ended
	// before a renewal succeeded, or, of a lease that isn't renewed, at all.
	ErrExpired = errors.New("lease: trusted time has ended")

	// ErrGone is the reason of a loss when the store said that the owner
	// doesn't hold the name any more.
	ErrGone = errors.New("lease: owner does not hold the name any more")
)

// ErrRefused is for a [RenewFunc] to return, also wrapped, when the store answered
// that it will not carry out the call, which may be because of one of its items.
var ErrRefused = errors.New("lease: renewal refused")

// Item names one hold to the renew function.
type Item struct{ Name, Owner string }

// Keeper is whoever keeps a lease: its names in the store, and whom to tell.
type Keeper interface {
	// Item names the hold. Group is what it may share a call with: renewals of leases with an equal one, which
	// may be any comparable value, go together. Both are constant, and must not call the Renewer.
	Item() Item
	Group() any

	// Lost is called at most once, on the renewer's goroutine or on one that calls CatchUp, with the reason: ErrExpired
	// or ErrGone. It must not block, since everyone's losses and renewals wait for it, but it may call any method
	// except CatchUp and Close.
	Lost(reason error)

	// Closed is called at most once, and not if Lost was, by the Close of a Renewer that keeps the lease. It must
	// not block either. Like a loss, it may cross with Stop.
	Closed()
}

// Verdict is what became of one item of a renew call.
type Verdict int8

const (
	Failed  Verdict = iota // not known, or refused for now: try again until the trusted time ends
	Renewed                // expiry extended by the ttl of the call
	Gone                   // the store says that the owner does not hold the name any more
)

// Lease is the state of one hold. The zero value is ready for [Renewer.Keep];
// it serves one hold, of one Renewer, and must not be copied after Keep. It is
// meant to be embedded by value in whatever stands for the hold.
//
// All fields are guarded by the mutex of the Renewer.
type Lease struct {
	_ noCopy

	keeper Keeper

	until time.Duration // trusted time, since the renewer's epoch

	g          *group // resolved when it is due for the first time
	next, prev *Lease // neighbours in the queue of g that it is in
	call       *call  // the call in flight that includes it; outlives Stop and loss

	pos     [2]int32 // places in the heaps, see heap.pos
	state   state
	place   place
	renewed bool
	tries   uint8 // renewals that failed since one succeeded, up to maxTries
	alone   bool  // to be sent in a call of its own

	releasing bool // see Renewer.Releasing
}

// state is the way of a lease: idle, kept, then at the most one step on each
// line, and never back.
type state uint8

const (
	idle    state = iota
	kept          // in the heap of ends; may be lost
	gone          // as kept, but the store has said Gone, which has not been passed on yet
	lost          // lost has been or is being called
	stopped       // lost will not be called
)

// place is where a lease waits for its next renewal: always in one place, so
// no lease is in two calls at once.
type place uint8

const (
	nowhere   place = iota // not renewed, lost or stopped
	inDues                 // in Renewer.dues, and in the queue resting of its group
	inRetries              // in Renewer.retries
	inQueue                // in the queue many or alone of its group
	inCall                 // in a call in flight
)

// noCopy lets go vet find copies.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}
