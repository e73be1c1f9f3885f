package quorum

import (
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
		case calls.MayPass(s.err):
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
