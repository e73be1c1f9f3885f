package quorum

import (
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lease"
	"github.com/go-rlock/rlock/lua"
)

// share is the owner's part on one server.
type share struct {
	of     *votes
	tenure *tenure.Tenure // a new one for each lease, with the same owner

	asked   bool          // a call is under way
	held    bool          // as far as known
	thin    bool          // granted, but too few replicas have it: it counts as missing
	since   time.Time     // since when it is known to be held without a break
	left    bool          // a call for it outlives the Client, and gives it back
	back    bool          // released, or given back
	found   bool          // found held by that release
	failed  error         // that release's error
	until   time.Time     // trusted from the grant on; the renewer knows what was added
	ttl     time.Duration // lease to which the watchdog renews it; 0: none
	watched time.Duration // the longest ttl; 0: never renewed
	err     error         // the last call's error
	refusal lua.AcquireReply
	at      time.Time // of the last answer
}

// ask asks the server for the share, or for a missing one again: acquire takes it, or finds it there. The share is marked as asked.
func (s *share) ask() {
	c := s.tenure.Lock.Client
	if !c.Calls.Start() {
		s.answered(tenure.AcquireResult{}, false, s.of.of.errors().Closed)
		return
	}
	go func() { // ends with the answer, or with the votes; Close waits for it
		if a, left, err := s.call(); !s.answered(a, left, err) {
			c.Calls.Ended()
		}
	}()
}

// call sends the request once. If the votes end first, or the Client is closed, left is true and late gets the answer.
func (s *share) call() (a tenure.AcquireResult, left bool, err error) {
	m, ctx := s.tenure.Lock, s.of.ctx
	if known, err := m.Client.Cluster.Learn(ctx, time.Time{}, m); !known {
		return a, false, err
	}
	once := tenure.Caller{Ctx: ctx, Limit: time.Now()} // no repeats after that
	q := &engine.AcquireRequest{Caller: once, Lock: m, Tenure: s.tenure, Count: 1}
	return tenure.Leavable(ctx, m, time.Time{}, q.Send, s.late)
}

// late handles an answer after the end of the votes.
func (s *share) late(a tenure.AcquireResult, err error) {
	s.of.mu.Lock()
	s.thin = s.thin || a.Unconfirmed != nil
	s.begins(a)
	s.of.mu.Unlock()
	s.giveBack(s.thin || a.Status == lua.Acquired, err)
}

// answered records an answer. It reports true if a share was granted while the round is undecided: the call then stays counted until
// the decision, so that Close waits for a possible give-back. A share that is to be asked for again is not given back meanwhile, since a
// release may be late (I3).
func (s *share) answered(a tenure.AcquireResult, left bool, err error) (undecided bool) {
	v, m := s.of, s.tenure.Lock
	granted, thin := err == nil && !left && a.Status == lua.Acquired, false
	if granted && a.Unconfirmed != nil {
		granted, thin, err = false, true, fmt.Errorf("%w: %w", v.of.errors().NotReplicated, a.Unconfirmed)
	} else if err == nil && !granted && a.Status == 0 {
		err = calls.ErrNoAnswer
	}
	v.mu.Lock()
	s.asked, s.left, s.err, s.at = false, left, err, time.Now()
	s.refusal = lua.AcquireReply{}
	over, live := v.over, v.live
	switch {
	case over:
	case thin:
		s.thin = true
	case granted:
		s.held, s.thin, s.until = true, false, a.Sent.Add(m.TTL)
		if s.begins(a); live {
			s.keep()
			v.lookAtOthers(s)
		}
	case err == nil:
		s.refusal, s.thin = a.AcquireReply, false
		// The server is up: a competing Lock has the share briefly, and not every try may collide with one.
		v.pause = min(v.pause, refusedHeal)
	}
	v.mu.Unlock()
	switch {
	case over && !left:
		s.late(a, err)
	case live:
		v.CatchUp()
	default:
		select {
		case v.news <- struct{}{}:
		default:
		}
	}
	return (granted || thin) && !over && !live
}

// begins notes since when a share that was just granted is known to be held: since the votes are live, if it was asked for before, and the
// answer came right behind those of the majority. mu is held.
func (s *share) begins(a tenure.AcquireResult) {
	began := s.of.began
	if s.since = time.Now(); a.Sent.Before(began) && s.since.Sub(began) < majorityTieWindow {
		s.since = began
	}
}

// keep hands a share of live votes to the renewer. mu is held.
func (s *share) keep() {
	t := s.tenure
	t.Lock.Client.Leases.Keep(&t.Lease, shareKeeper{tenure.Keeper{Tenure: t}, s}, s.until, s.ttl)
}

// shareKeeper is the renewer's view of a share: its loss need not be the hold's loss.
type shareKeeper struct {
	tenure.Keeper

	share *share
}

// About names the share's lock.
func (k shareKeeper) About() (name, kindName string) { return k.Lock.Name, kind.Name }

// Lost is called when the server has forgotten the share, or its lease has ended. It is asked for again.
func (k shareKeeper) Lost(loss lease.Loss) {
	s, v := k.share, k.share.of
	v.CatchUp() // if its time is over, that is the reason
	v.mu.Lock()
	if v.over || s.tenure != k.Tenure { // CatchUp has noticed
		v.mu.Unlock()
		return
	}
	why, lost := s.misses(loss.Gone)
	v.mu.Unlock()
	if lost {
		v.lose(why)
	}
	v.CatchUp()
}

// misses notes that the server has forgotten the share (gone), or that its lease is over. In the second case, too, nobody knows whether the
// server had it since it was last seen there. Unless a majority of the others had theirs meanwhile, that is the loss of the hold. mu is held.
func (s *share) misses(gone bool) (why tenure.Loss, lost bool) {
	v, seen, old := s.of, s.seen(), s.tenure
	s.held = false
	s.tenure = v.tenure.Share(old.Lock)
	s.tenure.Unresolved = old.Unresolved
	why = tenure.Loss{Reason: tenure.LostGone, Since: time.Now()}
	others := v.haveSince(seen)
	if gone {
		v.heal = why.Since
		why.Text = fmt.Sprintf("lost: only %d of %d servers had it all the time; the others lost their data, or it was forced open",
			others, len(v.shares))
	} else { // an unanswered renewal may have kept it
		s.tenure.UnresolvedUntil(why.Since.Add(s.lease())).OutcomeUnknown = true
		why.Reason, why.Text = tenure.LostExpired, fmt.Sprintf(
			"lost: only %d of %d servers are known to have had it all the time; one was not renewed in time", others, len(v.shares))
	}
	return why, others < v.of.majority()
}

// Closed is called when the Client is closed. The share stays in Redis, and counts until its lease ends.
func (k shareKeeper) Closed() { k.share.of.CatchUp() }

// seen returns when the last call that found the share was sent. mu is held.
func (s *share) seen() time.Time {
	if end := s.end(); end.After(s.until) {
		return end.Add(-s.watched) // or later, if it was renewed for less
	}
	return s.until.Add(-s.tenure.Lock.TTL)
}

// end returns when its lease ends. mu is held.
func (s *share) end() time.Time {
	if renewed := s.tenure.Lock.Client.Leases.Until(&s.tenure.Lease); renewed.After(s.until) {
		return renewed
	}
	return s.until
}

// lease returns the longest lease the share was requested or renewed with. mu is held.
func (s *share) lease() time.Duration { return max(s.tenure.Lock.TTL, s.watched) }
