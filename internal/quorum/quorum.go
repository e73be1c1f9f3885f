// Package quorum takes locks on a majority of several independent servers. It deals with the majority; package engine does the rest:
//
//   - quorum.go: the lock and its handle
//   - election.go: how a Lock competes for a majority, in rounds; its waiting is in sleep.go
//   - local_queue.go: the turns of this process's goroutines
//   - server_watch.go: news of one server, through its Client's hub
//   - votes.go: a hold's shares, how long a majority of them is trusted
//   - share.go: one server's share, and how a missing one comes back
//   - tally.go: counting the replies of a round
//   - release.go: the meaning of the replies to a release
//
// A quorum's holds and levels are the engine's. They rest on a majority (engine.Majority) as others do on a tenure. Each share of the
// majority is a tenure, renewed by its own Client.
package quorum

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/pubsub"
)

// Quorum is a lock on several servers, on the terms of one handle. It does not change.
type Quorum struct {
	// Whole describes it all: the user's name for it, the lease, and a key shared by all handles on the same members. Redis has no such key. Its
	// Client is that of the first member given, whose options apply, so that it is the same in each process.
	Whole   *tenure.Lock
	Members []*tenure.Lock // in the order of their Clients' ids, so that the order of the arguments does not matter
}

// kind is the kind of the whole. The members are mutexes.
var kind = &kinds.Kind{Name: "quorum"}

// New returns the lock on those members: an odd number, each with its own Client.
func New(name string, members []*tenure.Lock) *Quorum {
	first := members[0]
	members = slices.SortedFunc(slices.Values(members), func(a, b *tenure.Lock) int { return cmp.Compare(a.Client.ID, b.Client.ID) })
	var key strings.Builder
	for _, m := range members {
		key.WriteString(m.Client.ID + m.Key + "\n")
	}
	maxWait, persists := time.Duration(0), false
	for _, m := range members {
		persists = persists || m.Persists
		maxWait = tenure.ShortestWait(maxWait, m.MaxWait)
	}
	return &Quorum{first.Whole(key.String(), kind, name, maxWait, persists), members}
}

// majority returns how many servers must hold the lock.
func (q *Quorum) majority() int { return len(q.Members)/2 + 1 }

// isShut reports whether too few Clients accept new holds.
func (q *Quorum) isShut() bool { return q.tooMany((*tenure.Client).IsShut) }

// tooMany reports whether are holds for so many Clients that the others are no majority.
func (q *Quorum) tooMany(are func(*tenure.Client) bool) bool {
	n := 0
	for _, m := range q.Members {
		if are(m.Client) {
			n++
		}
	}
	return n > len(q.Members)-q.majority()
}

func (q *Quorum) errors() *tenure.Errors { return &q.Whole.Client.Options.Errors }

// tooFew returns the error for a missing majority; err is a server's or connection's error.
func (q *Quorum) tooFew(err error) error {
	return fmt.Errorf("fewer than %d of %d servers took part: %w", q.majority(), len(q.Members), cmp.Or(err, calls.ErrNoAnswer))
}

// waiters returns the hub queue in which this process waits for m's server.
func (q *Quorum) waiters(m *tenure.Lock) pubsub.Queue {
	return pubsub.Queue{Lock: q.Whole.Key, Channel: m.Client.KnownChannel(m)}
}
