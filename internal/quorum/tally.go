package quorum

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
)

// tally is what came of a round so far.
type tally struct {
	granted, refused, asked int // servers
	refusedForGood          int // by an error that does not pass
	err                     error
	last                    time.Time // answer
}

func (v *votes) count() (t tally) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var forGood error
	for _, s := range v.shares {
		switch {
		case s.asked:
			t.asked++
			continue
		case s.held:
			t.granted++
		case s.err == nil:
			t.refused++
		case calls.IsTransient(s.err):
			t.err = s.err
		default:
			t.refusedForGood++
			forGood = s.err
		}
		if s.at.After(t.last) {
			t.last = s.at
		}
	}
	if t.err == nil || t.refusedForGood > len(v.shares)-v.of.majority() {
		t.err = forGood
	}
	return t
}

var errVotedTwice = errors.New("no quorum of independent servers")

// votedTwice returns an error if a server has refused one member because the Client of another one has the lock there: the two are on one
// server, and would wait for each other for ever.
func (v *votes) votedTwice() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.shares {
		for _, other := range v.shares {
			if s != other && other.tenure.Lock.Client.IsOwn(s.refusal.Holder) {
				return fmt.Errorf("%w: the members of the Clients %s and %s are on one Redis server (give each a server of its own)",
					errVotedTwice, s.tenure.Lock.Client.ID, other.tenure.Lock.Client.ID)
			}
		}
	}
	return nil
}
