package pubsub

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// A process that waits for a lock may have a place in a queue in Redis, as the owner that one of its waiters is to
// become. Whoever releases the lock gives it to the first of that queue, and tells that process alone, see release.lua.
//
// A waiter takes the place before the call that joins the queue is sent, so that the grant, which may arrive before
// the answer, finds it. It keeps the place until it has the lock, has left, or learns that it did not join.

// Grant is what the message to a process that got the lock says.
type Grant struct {
	Lease  time.Duration // from the moment in which the lock was given to it
	Grants int           // in a row, this one included, since everybody was told
	Token  int64         // fencing token; negative: there is none

	Crossed bool // it came while the waiter, or its claimant, was asking: the answer may be newer
}

// Listens reports whether this process will hear of a grant to the waiter, which has the turn: it may
// then take the process's place.
func (w *Waiter) Listens() bool {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	return t.sub != nil && t.sub.grants() && t.sub.live() && t.placeIsFor(w)
}

// TakePlace notes that the process is about to have a place in the queue as that owner. The waiter has the turn, or
// is claimed by the caller. It reports false if another waiter has the place, or the process does not hear of grants.
func (w *Waiter) TakePlace(owner string) bool {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	if !t.placeIsFor(w) || t.sub == nil || !t.sub.grants() {
		return false
	}
	t.placed, t.place = w, owner
	return true
}

// Given returns the grant of a waiter that got the lock from another process, and nil for any other.
func (w *Waiter) Given() *Grant { return w.given }

// placeIsFor reports whether w has the place of this process, or may take it.
func (t *topic) placeIsFor(w *Waiter) bool { return t.placed == nil || t.placed == w }

// leavePlace forgets the place if w has it.
func (t *topic) leavePlace(w *Waiter) {
	if t.placed == w {
		t.placed, t.place = nil, ""
	}
}

// told handles a message to this process alone: '<owner> <lease> <grants> <token>', with '-' for no token, or '? <ms>'.
// Whatever else it says, the lock is to be looked at.
func (s *subscription) told(payload string) {
	words := strings.Fields(payload)
	if len(words) == 4 {
		lease, err1 := strconv.ParseInt(words[1], 10, 64)
		grants, err2 := strconv.Atoi(words[2])
		token, err3 := strconv.ParseInt(words[3], 10, 64)
		if words[3] == "-" {
			token, err3 = -1, nil
		}
		if errors.Join(err1, err2, err3) == nil {
			s.give(words[0], &Grant{Lease: time.Duration(lease) * time.Millisecond, Grants: grants, Token: token})
			return
		}
	}
	var ms int64
	if len(words) == 2 && words[0] == "?" {
		ms, _ = strconv.ParseInt(words[1], 10, 64)
	}
	for _, t := range s.topics {
		if t.placed != nil {
			t.look(time.Duration(ms) * time.Millisecond)
		}
	}
}

// give hands the lock to the waiter that is to be that owner. If it has gone, its caller releases the lock, or will
// find that another one has it.
func (s *subscription) give(owner string, g *Grant) {
	for _, t := range s.topics {
		if w := t.placed; w != nil && t.place == owner {
			t.leavePlace(w)
			w.given = g
			if t.current != w { // or it hears of it at the end of its turn or claim
				w.handOver(g.Lease)
			}
			return
		}
	}
}

// look has the first waiter ask when d is over, or earlier.
func (t *topic) look(d time.Duration) {
	if d > 0 {
		t.setTimer(d)
		return
	}
	t.freed()
	t.wakeFirst()
}

// unlocked handles a message to all who listen. '00' is for those who have no place in the queue.
func (s *subscription) unlocked(payload string) {
	for _, t := range s.topics {
		if payload == "00" && t.queue.Shared {
			continue // for Redisson, behind a '1'
		}
		t.freed()
		switch {
		case payload == "00" && t.placed != nil:
		case payload == "1" && !t.queue.Shared:
			t.wakeAll()
		default:
			t.wakeFirst()
		}
	}
}
