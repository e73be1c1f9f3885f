package quorum

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/ear"
	"github.com/go-rlock/rlock/internal/tenure"
)

// An owner has a share on each server of a quorum. A share is an engine tenure: the acquire script takes it, its Client's renewer keeps it,
// and it is released or swept like any other. The hold rests on all shares together.
//
//	share    event                              next
//	asked    granted                            held: renewed once the votes are live
//	         granted, but not confirmed         missing; it stays on the server until it is asked for again, or the votes are over
//	         refused, failed                    missing
//	held     a renewal finds it gone, or its
//	         lease ends                         the same
//	missing  100 ms, 200 ms, … a third of the
//	         watchdog time later                asked, while the watchdog keeps the hold
//	any      the votes are over                 given back; after the reply, if a call is under way
//
//	votes    event                              next
//	voting   a majority of shares is held       live: a hold begins
//	         a majority is out of reach         over (election.vote)
//	live     a majority was not renewed in time,
//	         or has forgotten its shares        over: the hold is lost; its last unlock releases the remaining shares
//	         a majority of Clients is closed    told: the ctx is cancelled; the shares stay until the unlock
//	         the last level is unlocked         over: released
//
// The votes are trusted for as long as a majority of shares is, less the drift. Each share counts from the time when its acquire or last
// renewal was sent.
//
// A missing share that is held again counts for the future, but not for the past: another owner may have had that server in between. So
// when a server has forgotten its share, a majority of the other servers must have held theirs since before that share was last seen.
// Otherwise two servers could forget their shares and grant them again, one after the other, while another owner held the lock unnoticed.
// The same holds when the lease of a share is over, as the server may have forgotten it before. All others are renewed at once when a server
// grants a share to live votes: so only servers that were away together, or forgot together, cost the hold.
//
// The votes have no goroutine. Each call for a share has one, which ends with the reply or the votes.

// votes are one owner's shares of a quorum, from a round to the unlock of its hold.
type votes struct {
	of     *Quorum // the handle of the Lock
	line   *localQueue
	asked  *ear.Askable   // notified of waiters; nil: not wanted. Not changed once the hold is the line's holder
	tenure *tenure.Tenure // the tenure of the whole, on which the hold stands

	ctx     context.Context // for the calls for shares; ends with the votes
	cancel  context.CancelFunc
	news    chan struct{}    // capacity 1: a share was answered
	ended   chan []error     // capacity 1: the result of the release
	given   context.Context  // the ctx given to its Lock; not changed after the votes are live
	counted []*tenure.Client // engines that have counted the hold; not changed after it is live
	passed  sync.Once        // the turn of the process

	mu       sync.Mutex // guards the following, and the shares; those of the tenure and of renewers are taken under it
	shares   []*share
	live     bool
	began    time.Time // to be live
	over     bool      // the round had no winner, or the hold is lost or unlocked
	rest     []*share  // shares without a call under way at the end; neither they nor the list change afterwards
	releases bool      // an unlock waits for the release of all
	told     bool      // a majority of Clients is closed
	heal     time.Time // when missing shares are asked for again
	pause    time.Duration
	timer    *time.Timer // calls CatchUp; nil before they are live
}

// majorityTieWindow is how long after the majority another server's answer still counts as part of it.
const majorityTieWindow = 50 * time.Millisecond

const (
	// firstHeal is the first pause before a missing share is asked for again. It doubles.
	firstHeal = 100 * time.Millisecond
	// refusedHeal is the longest pause if another owner had the share.
	refusedHeal = 4 * firstHeal
)

// drift returns how early a hold stops being trusted before its lease ends, since clocks of the process and the servers may run at
// different rates. It is the allowance of Redlock's reference implementation, which also covers Redis rounding to milliseconds. See
// https://redis.io/docs/latest/develop/use/patterns/distributed-locks/.
func drift(lease time.Duration) time.Duration { return lease/100 + 2*time.Millisecond }

// newVotes begins a round by asking all servers.
func newVotes(q *Quorum, line *localQueue) *votes {
	v := &votes{
		of: q, line: line, pause: firstHeal,
		news: make(chan struct{}, 1), ended: make(chan []error, 1),
	}
	v.tenure = tenure.MajorityOf(q.Whole, v)
	v.ctx, v.cancel = context.WithCancel(context.Background()) // calls under way do not end with their caller
	for _, m := range q.Members {
		ttl := q.Whole.RenewedFor(m.Client)
		v.shares = append(v.shares, &share{of: v, tenure: v.tenure.Share(m), asked: true, ttl: ttl, watched: ttl})
	}
	for _, s := range v.shares {
		s.ask()
	}
	return v
}

// haveSince returns how many servers have had their share since seen, or since the votes went live if that is later. mu is held.
func (v *votes) haveSince(seen time.Time) (n int) {
	now := time.Now()
	if v.began.After(seen) {
		seen = v.began
	}
	for _, s := range v.shares {
		if s.held && !s.since.After(seen) && now.Before(s.end()) {
			n++
		}
	}
	return n
}

// lookAtOthers has the shares beside one that was just granted renewed now: whatever is seen after that had no gap with it. mu is held.
func (v *votes) lookAtOthers(granted *share) {
	if !granted.since.After(v.began) {
		return
	}
	for _, s := range v.shares {
		if s != granted && s.held {
			s.tenure.Lock.Client.Leases.Soon(&s.tenure.Lease)
		}
	}
}

// Until returns the time until which a majority of the servers has the hold; zero if that is over.
func (v *votes) Until() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	var ends []time.Time
	for _, s := range v.shares {
		if s.held {
			ends = append(ends, s.end().Add(-drift(s.lease())))
		}
	}
	if len(ends) < v.of.majority() {
		return time.Time{}
	}
	slices.SortFunc(ends, func(a, b time.Time) int { return b.Compare(a) })
	return ends[v.of.majority()-1]
}

// open begins a hold on a round that won the majority. It fails if the majority's lease is already over.
// waited: the Lock did not win at once.
func (v *votes) open(who tenure.Caller, waited bool) (*tenure.Level, error) {
	until := v.Until()
	if !time.Now().Before(until) {
		v.rollBack()
		return nil, v.tenure.Lock.AnsweredTooLate(v.tenure.Field(), until)
	}
	for _, m := range v.of.Members {
		if m.Client.HoldBegins(false) {
			v.counted = append(v.counted, m.Client)
		}
	}
	if len(v.counted) < v.of.majority() {
		v.uncount()
		v.rollBack()
		return nil, v.of.errors().Closed
	}
	l := v.tenure.Admit(who, v.of.Whole)
	v.asked = ear.BeginOn(l, v.of.Members, waited)
	v.mu.Lock()
	v.live, v.began, v.given = true, time.Now(), who.Outer
	v.line.holder.Store(v)
	v.heal = time.Now().Add(firstHeal)
	v.timer = time.AfterFunc(time.Until(until), v.CatchUp)
	for _, s := range v.shares {
		if s.held {
			s.keep()
		}
		if s.held || s.thin {
			s.tenure.Lock.Client.Calls.Ended() // see answered
		}
	}
	v.mu.Unlock()
	v.CatchUp()
	if v.asked != nil && v.line.isWaitedFor() { // later waiters see the holder
		v.asked.Ask()
	}
	return l, nil
}

func (v *votes) uncount() {
	for _, c := range v.counted {
		c.HoldEnds()
	}
}

// Owns reports whether that is the owner on one of the servers.
func (v *votes) Owns(field string) bool {
	return slices.ContainsFunc(v.of.Members, func(m *tenure.Lock) bool { return v.tenure.Share(m).Field() == field })
}

// IsTold reports whether a majority of Clients is closed.
func (v *votes) IsTold() bool { return v.of.tooMany((*tenure.Client).IsTold) }

// CatchUp marks a hold lost when its time is over, even during its release or after Close, and cancels its sections when a majority of Clients is
// closed. It updates the renewers to the needs of the open levels, and asks for missing shares when due. Then the timer calls it again.
func (v *votes) CatchUp() {
	until, now, closes := v.Until(), time.Now(), false
	v.mu.Lock()
	switch {
	case !v.live || v.over && !v.releases:
	case !now.Before(until):
		why := v.expired(until)
		v.mu.Unlock()
		v.lose(why)
		return
	case v.over:
		v.timer.Reset(until.Sub(now))
	case v.told:
	case v.IsTold():
		v.told, closes = true, true
		v.timer.Stop() // from here on only an unlock asks
	default:
		end, why, lost := v.unkept(now)
		if lost {
			v.mu.Unlock()
			v.lose(why)
			return
		}
		ask, next := v.missing(now)
		v.timer.Reset(calls.Earlier(end, calls.Earlier(next, until)).Sub(now))
		v.mu.Unlock()
		for _, s := range ask {
			s.ask()
		}
		return
	}
	v.mu.Unlock()
	if closes {
		tenure.Keeper{Tenure: v.tenure}.Closed() // no loss: the hold stays in Redis until its unlock
	}
}

// unkept ends the shares of closed Clients whose leases are over, which no renewer reports, and returns when that of the next one is; zero:
// there is none. It reports the loss of the hold as misses does. mu is held.
func (v *votes) unkept(now time.Time) (next time.Time, why tenure.Loss, lost bool) {
	for _, s := range v.shares {
		c := s.tenure.Lock.Client
		if !s.held || !c.Calls.IsClosed() {
			continue
		}
		if end := s.end(); now.Before(end) {
			next = calls.Earlier(end, next)
			continue
		}
		c.Leases.Stop(&s.tenure.Lease)
		if why, lost = s.misses(false); lost {
			return next, why, lost
		}
	}
	return next, why, false
}

// missing adapts the renewers to the open levels. It returns the shares to be asked for now, and when more will be due; zero: none. mu is
// held.
func (v *votes) missing(now time.Time) (ask []*share, next time.Time) {
	for _, s := range v.shares {
		c := s.tenure.Lock.Client
		s.ttl = v.tenure.RenewedFor(c)
		s.watched = max(s.watched, s.ttl)
		switch {
		case s.held:
			c.Leases.Update(&s.tenure.Lease, time.Time{}, s.ttl)
		case s.ttl > 0 && !s.asked && !s.left && !c.Calls.IsClosed():
			ask = append(ask, s)
		}
	}
	switch {
	case len(ask) == 0:
		v.pause = firstHeal
		return nil, time.Time{}
	case now.Before(v.heal):
		return nil, v.heal
	}
	for _, s := range ask {
		s.asked = true
	}
	v.heal = now.Add(v.pause)
	v.pause = min(2*v.pause, v.of.Whole.WatchdogIn(v.of.Whole.Client)/3)
	return ask, time.Time{}
}

// expired returns the loss of a hold that was trusted until then. mu is held.
func (v *votes) expired(until time.Time) tenure.Loss {
	why := tenure.Loss{Reason: tenure.LostExpired, Since: until, Text: "lost: its lease of fixed length ended"}
	if until.IsZero() {
		why.Since = time.Now()
	}
	if v.shares[0].ttl > 0 {
		why.Text = fmt.Sprintf("lost: fewer than %d of %d servers renewed it in time", v.of.majority(), len(v.shares))
	}
	return why
}

// lose ends a live hold before its unlock, or in it.
func (v *votes) lose(why tenure.Loss) {
	if v.tenure.Lose(why) {
		v.end(false)
		v.pass()
	}
}

// rollBack ends a round without a majority: it gives back the shares, including late ones.
func (v *votes) rollBack() {
	release(v.end(false), true)
}

// end ends the renewals and the calls for shares. A share with a call under way ends with that call; the others are the rest. releases: an
// unlock waits for the results.
func (v *votes) end(releases bool) (rest []*share) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.over {
		v.over, v.releases = true, releases
		v.cancel()
		for _, s := range v.shares {
			if !s.asked && !s.left {
				v.rest = append(v.rest, s)
				s.tenure.Lock.Client.Leases.Stop(&s.tenure.Lease)
			}
		}
	}
	return v.rest
}

// pass lets the process's next goroutine compete, when the hold is lost or its unlock returns. When any call of pass returns, the turn
// has been passed.
func (v *votes) pass() {
	v.passed.Do(func() {
		v.mu.Lock()
		v.releases = false
		v.timer.Stop()
		v.mu.Unlock()
		v.line.pass()
	})
}
