package quorum

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/ear"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lua"
)

// A quorum's Lock that competes takes its process's turn and keeps it until its hold ends. With the turn it asks all servers, in rounds:
//
//	state     event                                    next
//	in line   turn: no goroutine of this process holds
//	          the lock or asks for it                  voting
//	          another Lock found no majority           out
//	voting    a majority granted                       entered
//	          a server has refused one member because
//	          the Client of another one has it there   out
//	          a majority answered, too few granted     waiting, after a random pause if some granted; TryLock(0): out
//	          too few answered                         voting again, for 3 s or, with WithWaitForRedis, until its time is over; then out
//	waiting   a majority may be free                   voting
//	any       ctx done, time-out, Close                out
//	entered   the lease still runs                     a live hold
//	          the lease has expired                    out
//
// Each round has a separate hold, which is rolled back unless it is entered.
//
// The Lock waits in a separate hub queue of each Client. Its waiter there has the turn if its server may have been freed since the last
// request: by a message, by an expiry, or during a gap in the subscription. The Lock sleeps while fewer than a majority may be free. So it
// misses no unlock that frees a majority (I-wake, for as many servers).

// election is a quorum's Lock on its way to a hold.
type election struct {
	tenure.Caller
	quorum  *Quorum
	line    *localQueue
	watches []serverWatch    // one for each member
	err     error            // why the last round got too few answers; nil if it got enough
	failed  time.Time        // start of the first in a row of rounds with too few answers; zero if the last had enough
	tries   int              // since failed
	took    time.Duration    // by the last round with enough answers
	held    lua.AcquireReply // the last refusal
	heldAt  *tenure.Client   // the Client that was refused
	waited  bool             // it was refused, or waited for the turn
}

// Lock re-enters the hold in the caller's ctx, or competes.
func (q *Quorum) Lock(who tenure.Caller) (*tenure.Level, error) {
	e := &election{Caller: who, quorum: q}
	for {
		outer := q.Whole.LevelIn(who.Ctx)
		switch {
		case who.Ctx.Err() == nil && outer == nil:
			return e.compete()
		case who.Ctx.Err() == nil:
			switch o := outer.Reenter(who, q.Whole); {
			case o.Err != nil:
				return nil, e.failure(o.Err)
			case o.Level != nil:
				return o.Level, nil
			}
		case outer != nil: // whose loss may have ended ctx
			return nil, e.failure(outer.Loss())
		default:
			return nil, e.failure(nil)
		}
	}
}

// compete takes the lock for a new owner.
func (e *election) compete() (*tenure.Level, error) {
	e.line = enterLine(e.quorum.Whole.Key)
	if err := e.takeTurn(); err != nil {
		defer e.line.leave()
		return nil, e.failure(err)
	}
	e.watches = make([]serverWatch, len(e.quorum.Members))
	for i, m := range e.quorum.Members {
		e.watches[i].member = m
	}
	l, err := e.elect()
	e.leave(err == nil)
	if err != nil {
		if e.err != nil && errors.Is(err, e.err) && calls.IsTransient(err) {
			e.line.unanswered(e.failed, err)
		}
		err = e.failure(err)
		e.line.pass()
	}
	return l, err
}

// takeTurn waits for this Lock's turn among those of the process.
func (e *election) takeTurn() error {
	select {
	case e.line.turn <- struct{}{}:
		return nil
	default:
	}
	if e.Once {
		return errGaveUp
	}
	e.waited = true
	e.Waits("")
	if v := e.line.holder.Load(); v != nil {
		v.asked.Ask()
	}
	turn := reflect.SelectCase{Dir: reflect.SelectSend, Chan: reflect.ValueOf(e.line.turn), Send: reflect.ValueOf(struct{}{})}
	for {
		o := e.line.outage.Load()
		switch e.sleep(e.Wait, turn, ready(o.known)) {
		case 0:
			return nil
		case 1:
			if !e.Persists && e.Began.Before(o.since) { // it has waited for the whole outage
				return o.err
			}
		default:
			return errGaveUp
		}
	}
}

// elect asks in rounds until one gets the majority.
func (e *election) elect() (*tenure.Level, error) {
	q := e.quorum
	pause, retry := time.Duration(0), calls.MinPause
	for {
		for i := range e.watches {
			e.watches[i].listen(q) // before asking, so as to miss no message
		}
		began := time.Now()
		v := newVotes(q, e.line)
		t, err := e.vote(v, began)
		if err == nil && t.granted >= q.majority() {
			return v.open(e.Caller, e.waited)
		}
		v.rollBack()
		e.note(v, t, began, err != nil)
		twice := v.votedTwice()
		switch {
		case twice != nil:
			return nil, twice
		case err != nil:
			return nil, err
		case e.Once:
			return nil, errGaveUp
		case e.err == nil:
			e.Caller = e.Caller.Answered()
			retry = calls.MinPause
			if t.granted == 0 {
				pause = 0
			} else { // others are asking too: after random pauses, the first to ask again has all servers for itself
				pause = min(max(2*pause, 4*t.last.Sub(began), minPause), calls.MaxPause)
				if e.sleep(time.Now().Add(rand.N(pause))) == gaveUp {
					return nil, errGaveUp
				}
			}
			e.askHolders(v)
			if err := e.await(); err != nil {
				return nil, err
			}
		case t.refusedForGood > len(q.Members)-q.majority(), e.tries > 1 && time.Since(e.failed) >= calls.RetryWindow && !e.goesOn():
			return nil, q.tooFew(e.err)
		default:
			if e.sleep(time.Now().Add(retry)) == gaveUp {
				return nil, errGaveUp
			}
			retry = min(2*retry, calls.MaxPause)
		}
	}
}

// goesOn reports whether a Lock with WithWaitForRedis stays in its turn, though too few servers answered for long. Others leave.
func (e *election) goesOn() bool {
	err := e.quorum.tooFew(e.err)
	if !e.GoesOn() || !calls.IsTransient(err) {
		return false
	}
	e.line.unanswered(e.failed, err)
	e.failed, e.tries = time.Time{}, 0
	return true
}

// vote waits until it is clear whether the round gets the majority.
func (e *election) vote(v *votes, began time.Time) (t tally, err error) {
	most := e.quorum.majority()
	for {
		t = v.count()
		if t.granted >= most || t.asked == 0 {
			return t, nil
		}
		end := began.Add(calls.RetryWindow)
		if !e.failed.IsZero() { // there may be new connections since
			end = calls.Earlier(end, began.Add(max(secondTry, calls.RetryWindow-began.Sub(e.failed))))
		}
		if t.refused > 0 && t.granted+t.refused >= most || t.granted+t.asked < most {
			// The round has no majority, and others may need the granted shares. But a server that answers soon need not be asked again.
			end = calls.Earlier(end, t.last.Add(t.last.Sub(began)+stragglers))
		}
		cut := !e.Limit.IsZero() && e.Limit.Before(end)
		if cut {
			end = e.Limit
		}
		switch over := e.sleepBeyondWait(end, ready(v.news)); {
		case over == gaveUp, over == timeUp && cut:
			return v.count(), errGaveUp
		case over == timeUp:
			return v.count(), nil
		}
	}
}

// note draws conclusions from a round that is over, or was left by the caller.
func (e *election) note(v *votes, t tally, began time.Time, left bool) {
	if t.granted+t.refused >= e.quorum.majority() {
		e.err, e.failed, e.tries, e.took = nil, time.Time{}, 0, t.last.Sub(began)
	} else if !left || t.err != nil || calls.Waited(e.Ctx, began, e.Limit) >= max(calls.UnresponsiveAfter/2, 2*e.took) { // or there was no time for an answer
		switch {
		case t.err != nil:
			e.err = t.err
		case e.err == nil:
			e.err = calls.ErrNoAnswer
		}
		if e.tries++; e.tries == 1 {
			e.failed = began
		}
	}
	v.mu.Lock()
	ends := make([]time.Duration, len(v.shares))
	for i, s := range v.shares {
		switch {
		case s.refusal.Status == lua.Held:
			ends[i] = s.refusal.TTL
			e.held, e.heldAt = s.refusal, s.tenure.Lock.Client
			e.waited = true
		case s.err != nil && !s.asked && !s.left:
			ends[i] = deadServerRetry
		default: // notified when the share is given back
			ends[i] = -1
		}
	}
	v.mu.Unlock()
	for i, d := range ends {
		e.watches[i].sleep(e.quorum, d)
	}
}

// askHolders asks the current holders on the servers for the lock.
func (e *election) askHolders(v *votes) {
	v.mu.Lock()
	holders := make([]string, len(v.shares))
	for i, s := range v.shares {
		holders[i] = s.refusal.Holder
	}
	v.mu.Unlock()
	for i, m := range e.quorum.Members {
		ear.Of(m.Client).AskHolder(e.Ctx, m, holders[i])
	}
}

// secondTry is the minimum time for a round after one without an answer.
const secondTry = 500 * time.Millisecond

// deadServerRetry is how long a failed server is assumed to be down.
const deadServerRetry = time.Second

// minPause is the lowest upper bound of a random pause. The bound is at least four times the servers' reply time.
const minPause = 2 * time.Millisecond

// stragglers: in a round that may have no winner, slow servers have twice the others' reply time plus this.
const stragglers = 5 * time.Millisecond

func (e *election) await() error {
	e.Waits(e.held.Holder)
	for {
		free, deaf := 0, error(nil)
		able := 0
		cases := make([]reflect.SelectCase, len(e.watches))
		for i := range e.watches {
			r := &e.watches[i]
			cases[i] = ready(nil)
			switch {
			case r.err != nil:
				deaf = r.err
				continue
			case r.turn:
				free++
			case r.joined:
				cases[i] = ready(r.waiter.Turn())
			default:
				cases[i].Chan = reflect.ValueOf(r.retry)
			}
			able++
		}
		switch most := e.quorum.majority(); {
		case free >= most:
			return nil
		case able < most:
			return e.quorum.tooFew(deaf)
		}
		i := e.sleep(time.Time{}, cases...)
		if i < 0 {
			return errGaveUp
		}
		e.watches[i].hear()
	}
}

// leave ends the waiting.
func (e *election) leave(won bool) {
	for i := range e.watches {
		switch r := &e.watches[i]; {
		case !r.joined || r.err != nil:
		case won && r.turn:
			r.waiter.Done(r.member.TTL)
		default:
			r.waiter.Leave()
		}
	}
}

func (e *election) failure(err error) error {
	q, errs := e.quorum, e.quorum.errors()
	switch {
	case q.isShut():
		return q.Whole.Fail(errs.Closed)
	case errors.Is(err, errs.Lost):
		return err
	case errors.Is(err, errVotedTwice):
		return q.Whole.Fail(err)
	case err != nil && !errors.Is(err, errGaveUp):
		return q.Whole.Fail(errs.Unreachable(err))
	}
	not := tenure.NotAcquired{
		Ctx: e.Ctx, Name: q.Whole.Name, Began: e.Began, Holder: e.held.Holder, TTL: e.held.TTL, Other: e.held.Other,
	}
	if e.err != nil {
		not.Causes = []error{errs.Unreachable(q.tooFew(e.err))}
	}
	if e.heldAt != nil {
		not.Label = e.heldAt.LabelOf(not.Holder)
	}
	own := e.heldAt != nil && e.heldAt.IsOwn(e.held.Holder)
	if e.line != nil {
		if v := e.line.holder.Load(); v != nil {
			not.Holder, not.TTL, not.Other = v.tenure.Field(), time.Until(v.Until()), false
			not.Label = q.Whole.Client.LabelOf(not.Holder)
			own, not.Self = true, tenure.IsUnder(e.Outer, v.given)
		}
	}
	not.Carried = own && tenure.Carries(e.Ctx, not.Holder)
	return errs.NotAcquired(not)
}
