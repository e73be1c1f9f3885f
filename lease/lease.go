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

	item  Item
	group any         // what the item may share a call with
	lost  func(error) // told of the loss

	until   time.Duration // trusted time, since the renewer's epoch
	backoff time.Duration // the wait before the last retry; 0 when the last renewal succeeded

	g          *group // resolved when it is due for the first time
	next, prev *Lease // neighbours in the queue of g that it is in
	call       *call  // the call in flight that includes it; outlives Stop and loss

	pos     [2]int32 // places in the heaps, see heap.pos
	state   state
	place   place
	renewed bool
	alone   bool // to be sent in a call of its own

	releasing bool // see Renewer.Releasing
}

// state is the way of a lease: idle, kept, then at the most one step on each
// line, and never back.
type state uint8

const (
	idle    state = iota
	kept          // in the heap of ends; may be lost
	gone          // as kept, but the store has said Gone and the loop hasn't passed it on yet
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
