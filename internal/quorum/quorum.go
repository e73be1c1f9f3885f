// Package quorum takes locks that more than half of several independent servers hold. It knows the majority, and nothing of a lock that package
// engine knows:
//
//   - quorum.go: what such a lock is
//   - election.go: a Lock on its way to a majority, in rounds
//   - votes.go: what a hold has of the servers, until when a majority of them is trusted, and how the others come back
//   - release.go: what the answers to its release mean
//
// A hold of a quorum and its levels are those of the engine. They stand on a majority as they do on a tenure (engine.Majority), and each share in
// it is a tenure, which the renewer of its Client keeps.
package quorum

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/pubsub"
)

// Quorum is a lock over several servers, on the terms of one handle. It does not change.
type Quorum struct {
	// Spec is what it is as a whole: what users call it, how long a hold lasts, and a key that is the same for all handles on the same members.
	// Nothing of it is in Redis.
	Spec    *engine.Spec
	Members []*engine.Spec // in the order of their Clients' ids, so that the order of the arguments does not matter
}

// kind is that of the whole. Its members are mutexes.
var kind = &kinds.Kind{Name: "quorum"}

// New returns the lock over those members, an odd number, each of a Client of its own.
func New(name string, members []*engine.Spec) *Quorum {
	members = slices.SortedFunc(slices.Values(members), func(a, b *engine.Spec) int { return cmp.Compare(a.Engine.ID, b.Engine.ID) })
	var key strings.Builder
	for _, m := range members {
		key.WriteString(m.Engine.ID + m.Key + "\n")
	}
	first := members[0]
	whole := &engine.Spec{Engine: first.Engine, Kind: kind, Name: name, Key: key.String(), Lease: first.Lease, Watchdog: first.Watchdog, Mark: first.Mark}
	for _, m := range members {
		whole.MaxWait = engine.ShortestWait(whole.MaxWait, m.MaxWait)
	}
	return &Quorum{whole, members}
}

// Lock re-enters the hold in the caller's ctx, or competes.
func (q *Quorum) Lock(who engine.Caller) (*engine.Level, error) {
	e := &election{Caller: who, quorum: q}
	for {
		outer := q.Spec.LevelIn(who.Ctx)
		switch {
		case who.Ctx.Err() == nil && outer == nil:
			return e.compete()
		case who.Ctx.Err() == nil:
			if l, err := outer.Reenter(who, q.Spec); err == nil {
				return l, nil
			} else if err != engine.ErrOver { //nolint:errorlint // never wrapped
				return nil, e.failure(err)
			}
		case outer != nil: // whose loss may have ended ctx
			return nil, e.failure(outer.Loss())
		default:
			return nil, e.failure(nil)
		}
	}
}

// majority returns how many servers must hold the lock.
func (q *Quorum) majority() int { return len(q.Members)/2 + 1 }

// isShut reports whether too few Clients accept new holds.
func (q *Quorum) isShut() bool { return q.tooMany((*engine.Engine).IsShut) }

// tooMany reports whether are holds for so many Clients that no majority is left.
func (q *Quorum) tooMany(are func(*engine.Engine) bool) bool {
	n := 0
	for _, m := range q.Members {
		if are(m.Engine) {
			n++
		}
	}
	return n > len(q.Members)-q.majority()
}

// errors are those of users.
func (q *Quorum) errors() *engine.Errors { return &q.Spec.Engine.Options.Errors }

// tooFew returns the error for a missing majority; err is a server's or connection's error.
func (q *Quorum) tooFew(err error) error {
	return fmt.Errorf("fewer than %d of %d servers took part: %w", q.majority(), len(q.Members), cmp.Or(err, calls.ErrNoAnswer))
}

// waiters is where a goroutine of this process waits for the server of m.
func (q *Quorum) waiters(m *engine.Spec) pubsub.Queue {
	return pubsub.Queue{Lock: q.Spec.Key, Channel: m.Engine.KnownChannel(m)}
}
