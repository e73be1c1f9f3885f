package rlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/lease"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// locking is one Lock on its way to a hold: either a first acquire, which waits in the process's
// queue for the lock, or a re-entry, which passes it by.
type locking struct {
	mutex  *Mutex
	hold   *hold
	ctx    context.Context       // the caller's; the scope's ctx will be its child
	waiter pubsub.Waiter         // Until is the end of the waiting
	limit  time.Time             // of an attempt that is under way; zero: there is none
	once   bool                  // no waiting: one attempt
	answer answer                // of Redis, to whoever asked for this Lock: a goroutine of its own, or a claimant
	done   chan struct{}         // capacity 1: the question of that goroutine was answered; nil until there is one
	last   atomic.Pointer[error] // what went wrong when Redis was asked, if it did
	fate   atomic.Int32          // of the question
	shared bool                  // the Lock has returned, but somebody ends it in its place
}

// lockings are used again, since the uncontended Lock needs one only until it returns.
var lockings = sync.Pool{New: func() any { return new(locking) }}

// free gives the memory back, unless somebody still needs it.
func (l *locking) free() {
	if l.shared {
		return
	}
	*l = locking{done: l.done}
	lockings.Put(l)
}

// bounds say how long a Lock may take, apart from what the caller's ctx says.
type bounds struct {
	wait    time.Time // end of the waiting; zero: there is none
	attempt time.Time // end of an attempt that is under way, not before wait; zero: there is none
	once    bool      // no waiting: one attempt
}

// minAttempt is what an attempt is given at least, so that a TryLock with a wait that is shorter
// than the way to Redis still asks once, as one without waiting does. It is more than a moment, so that mayAskHere lets it.
const minAttempt = moment + prompt

// errAgain says that the owner was retired, or its record of the hold has ended, since the call
// looked: look again.
var errAgain = errors.New("owner retired")

// lock takes the lock for the owner that ctx carries, or for a new one.
func (m *Mutex) lock(ctx context.Context, b bounds) (*scope, error) {
	switch c := m.client; {
	case m.invalid != nil:
		return nil, m.invalid
	case c.isClosed():
		return nil, m.fail("lock", ErrClosed)
	case ctx.Err() != nil:
		return nil, m.notAcquired(ctx, nil)
	}
	if err := m.fits(); err != nil {
		return nil, m.fail("lock", err)
	}
	var o *owner
	if s := scopeOf(ctx); s != nil {
		o = s.hold.owner
	}
	for {
		if o == nil {
			o = newOwner()
		}
		h := o.hold(m)
		if h == nil {
			o = nil
			continue
		}
		l := lockings.Get().(*locking) //nolint:errcheck // see New
		l.mutex, l.hold, l.ctx = m, h, ctx
		l.waiter.Until, l.limit, l.once = b.wait, b.attempt, b.once
		s, err := l.run()
		l.free()
		if err == errAgain { //nolint:errorlint // never wrapped, never leaves the package
			continue
		}
		return s, err
	}
}

func (l *locking) run() (*scope, error) {
	h := l.hold
	if err := l.begin(); err != nil {
		h.owner.forget(h)
		return nil, err
	}
	h.owner.mu.Lock()
	count, over := h.count, h.over
	h.owner.mu.Unlock()
	switch {
	case over:
		l.end()
		return nil, errAgain
	case count > 0:
		return l.reenter(count + 1)
	}
	return l.enter()
}

// begin waits for the right to make calls for the hold (I-ops).
func (l *locking) begin() error {
	h := l.hold
	for first := true; ; first = false {
		ok, changed := h.begin()
		switch {
		case ok:
			return nil
		case changed == nil: // lost
			return errAgain
		case first && l.once && h.isEntering(): // a sibling waits for the lock itself, who knows how long
			return l.mutex.fail("lock", ErrNotAcquired)
		}
		if err := l.await(changed); err != nil {
			return err
		}
	}
}

// await waits for a sibling's call to end.
func (l *locking) await(changed <-chan struct{}) error {
	wait, cancel := l.until(l.waiter.Until)
	defer cancel()
	select {
	case <-changed:
		return nil
	case <-wait.Done():
		return l.given()
	case <-l.mutex.client.done:
		return l.mutex.fail("lock", ErrClosed)
	}
}

// until returns the caller's ctx, bounded by one of the bounds.
func (l *locking) until(end time.Time) (context.Context, context.CancelFunc) {
	if end.IsZero() {
		return l.ctx, func() {}
	}
	return context.WithDeadline(l.ctx, end)
}

// end gives the right to make calls back. It is the last that is done for the call.
func (l *locking) end() {
	l.hold.end()
	l.hold.owner.forget(l.hold)
}

// leave ends a first acquire that got nothing: its place in the queue goes to the next, and what it
// may have left in Redis is swept. It reports true, and has not ended, if it was granted the lock in this
// moment.
func (l *locking) leave() (granted bool) {
	switch l.waiter.Leave() {
	case pubsub.Granted:
		return true
	case pubsub.Claimed: // its claimant ends it
		l.shared = true
		return false
	case pubsub.Left:
	}
	l.mutex.client.sweepDoubt(l.mutex, l.hold)
	l.end()
	return false
}

// given is the error of a caller whose wait ended.
func (l *locking) given() error {
	var last error
	if p := l.last.Load(); p != nil {
		last = *p
	}
	// ctx is not done if it was the time-out of a TryLock.
	return l.mutex.notAcquired(l.ctx, last)
}

// failed is the error of a call that Redis did not answer as it should.
func (l *locking) failed(err error) error {
	if l.mutex.client.isClosed() && !errors.Is(err, ErrClosed) {
		return l.mutex.fail("lock", ErrClosed, err)
	}
	return l.mutex.fail("lock", err)
}

// enter takes the lock for an owner that does not hold it. Only the first waiter of the process
// asks Redis, when it has the turn.
func (l *locking) enter() (*scope, error) {
	h, m, c := l.hold, l.mutex, l.mutex.client
	if c.cluster.isUnknown() {
		if err := l.learn(); err != nil {
			l.end()
			return nil, err
		}
	}
	queue := m.queue()
	l.waiter.Value = l
	var turn bool
	if !l.once {
		turn = c.hub.Join(&l.waiter, queue)
	} else if turn = c.hub.JoinFirst(&l.waiter, queue); !turn {
		l.end()
		return nil, m.fail("lock", ErrNotAcquired)
	}
	for {
		if !turn {
			granted, err := l.awaitTurn()
			if err != nil && !l.leave() {
				return nil, err
			}
			if granted || err != nil { // also if it wanted to leave, but was too late
				return l.entered(l.answer)
			}
			if h.owner.isRetired() {
				l.leave()
				return nil, errAgain
			}
		}
		turn = false
		a, mine := l.ask(1)
		switch {
		case !mine && c.isClosed():
			return nil, m.fail("lock", ErrClosed)
		case !mine:
			return nil, l.given()
		case a.err != nil:
			if mayPass(a.err) { // it did not, for longer than anybody here should wait for their turn
				l.waiter.Unanswered(a.err)
			}
			l.leave()
			return nil, l.failed(a.err)
		case a.reply.Status == lua.Acquired:
			h.run = nil
			l.waiter.Done(m.ttl())
			return l.entered(a)
		case l.once:
			l.leave()
			return nil, m.fail("lock", ErrNotAcquired)
		}
		l.waiter.Held(a.reply.TTL)
	}
}

// learn asks for what has to be known of a cluster.
func (l *locking) learn() error {
	attempt, cancel := l.until(l.limit)
	defer cancel()
	err := l.mutex.client.cluster.learn(attempt, l.mutex)
	switch {
	case err == nil:
		return nil
	case attempt.Err() != nil:
		return l.given()
	}
	return l.failed(err)
}

// awaitTurn waits for the turn, or to be granted the lock.
func (l *locking) awaitTurn() (granted bool, err error) {
	select {
	case <-l.waiter.Turn():
		switch granted, err = l.waiter.News(); {
		case errors.Is(err, pubsub.ErrExpired):
			err = l.given()
		case errors.Is(err, pubsub.ErrClosed):
			err = l.mutex.fail("lock", ErrClosed)
		case err != nil:
			err = l.failed(err)
		}
		return granted, err
	case <-l.ctx.Done():
		return false, l.given()
	}
}

// entered turns a granted first acquire into a live hold, or gives it back. The waiter has left the queue.
func (l *locking) entered(a answer) (*scope, error) {
	h, m := l.hold, l.mutex
	until := a.sent.Add(m.ttl())
	var s *scope
	var err error
	switch {
	case a.reply.Unconfirmed != nil:
		err = m.fail("lock", ErrNotReplicated, a.reply.Unconfirmed)
	case time.Now().Before(until):
		s, err = h.open(l.ctx, m, until, a.reply.Token)
	default:
		err = m.fail("lock", ErrLost, errSlow)
	}
	if err == nil {
		l.end()
		return s, nil
	}
	m.client.giveBack(m, h)
	m.client.hub.Undone(m.queue()) // those behind it ask, though that was no unlock they know of
	l.end()
	if errors.Is(err, ErrClosed) {
		err = m.fail("lock", ErrClosed)
	}
	return nil, err
}

var errSlow = errors.New("the reply took longer than the lease")

// reenter adds a level to a live hold.
func (l *locking) reenter(count int) (*scope, error) {
	h, m := l.hold, l.mutex
	a, mine := l.ask(count)
	switch {
	case !mine && m.client.isClosed():
		return nil, m.fail("lock", ErrClosed)
	case !mine:
		return nil, l.given()
	}
	defer l.end()
	switch {
	case a.err != nil:
		// Redis may have counted this level. Nothing has to be done: each later call says which
		// count it wants.
		return nil, l.failed(a.err)
	case a.reply.Status != lua.Acquired:
		h.lost(lease.ErrGone)
	}
	s, err := h.open(l.ctx, m, a.sent.Add(m.ttl()), a.reply.Token)
	if err != nil {
		return nil, m.fail("lock", err)
	}
	return s, nil
}
