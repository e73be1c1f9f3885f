package pubsub

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/require"
)

// story drives a hub and two locks on one channel. It also plays their server, with its queues of processes, and the message stream of the
// connection, each a step behind the other. No lease ends, so only wake-ups and grants bring a waiter to its lock. A waiter's time ends
// when the story says so.
type story struct {
	*manualHub
	rnd        *rand.Rand
	locks      [2]storyLock
	subscribed bool               // at the server
	outside    bool               // without the channel of those in line
	stream     []func()           // sent messages that have not arrived
	cmd        op                 // the link's current command
	cmdAt      int                // 0: sent, 1: carried out, 2: confirmed
	sub        *subscription      // that it is about
	owners     map[*Waiter]string // of those that have asked for a place
	steps      []string
}

const stranger = "stranger" // another process

type storyLock struct {
	q       Queue
	waiters []*Waiter
	holder  string   // "": it is free
	local   bool     // the holder is a waiter of this process, and knows it
	queue   []string // of the processes, in Redis
	looks   bool     // a stranger must look at it
	gone    []string // owners that have left, and must be taken out of Redis

	asking *Waiter // whose attempt is in progress
	place  bool    // it is to have the process's place
	asked  bool    // the server has carried it out
	got    bool    // and granted it
	joined bool    // and has put it in the queue
	forced bool    // and has lost it since
}

func (s *story) note(format string, args ...any) {
	s.steps = append(s.steps, fmt.Sprintf(format, args...))
}

func (s *story) owner(w *Waiter) string { return fmt.Sprintf("%p", w) }

// publish makes the server notify all listeners, or only this process.
func (s *story) publish(toUs bool, format string, args ...any) (heard bool) {
	ch, text := s.ch, fmt.Sprintf(format, args...)
	if toUs {
		ch.Name += ":" + me
	}
	if s.subscribed {
		s.stream = append(s.stream, func() { s.hub.message(ch, text) })
	}
	return s.subscribed
}

// release ends a hold at the server, like release.lua. next joins the queue.
func (s *story) release(l *storyLock, next string) {
	l.holder, l.local = "", false
	if next != "" && !slices.Contains(l.queue, next) {
		l.queue = append(l.queue, next)
	}
	outsiders := s.subscribed && s.outside || s.rnd.IntN(3) == 0
	for len(l.queue) > 0 {
		first := l.queue[0]
		switch {
		case outsiders && (first == stranger || s.publish(true, "? 0")):
			l.looks = first == stranger
			s.publish(false, "00")
			return
		case !outsiders && (first == stranger || first == next || s.publish(true, "%s 2000 0 -", first)):
			l.holder, l.queue = first, l.queue[1:]
			return
		}
		l.queue = l.queue[1:]
	}
	s.publish(false, "0")
}

func (l *storyLock) drop(w *Waiter) {
	l.waiters = slices.DeleteFunc(l.waiters, func(x *Waiter) bool { return x == w })
}

// leaves handles a waiter that left and does not want a grant.
func (s *story) leaves(l *storyLock, w *Waiter) {
	l.drop(w)
	if s.owners[w] != "" {
		l.gone = append(l.gone, s.owner(w))
	}
}

// sweep removes owners that left from Redis.
func (s *story) sweep(l *storyLock) bool {
	if len(l.gone) == 0 {
		return false
	}
	owner := l.gone[0]
	l.gone = l.gone[1:]
	l.queue = slices.DeleteFunc(l.queue, func(x string) bool { return x == owner })
	if l.holder == owner {
		s.release(l, "")
	}
	return true
}

// look makes a stranger that got a hint take the lock.
func (s *story) look(l *storyLock) bool {
	if !l.looks {
		return false
	}
	l.looks = false
	if i := slices.Index(l.queue, stranger); i >= 0 && l.holder == "" {
		l.holder, l.queue = stranger, slices.Delete(l.queue, i, i+1)
	}
	return true
}

// hear lets the waiters of a lock read their news.
func (s *story) hear(l *storyLock) (moved bool) {
	for _, w := range slices.Clone(l.waiters) {
		select {
		case <-w.turn:
			moved = true
			granted, err := w.News()
			if err != nil {
				granted = w.Leave() == Granted
			}
			switch {
			case granted:
				l.drop(w)
				if w.Given() != nil {
					require.Equal(s.t, s.owner(w), l.holder, "the lock is not this waiter's: %v", s.steps)
					require.False(s.t, l.local, "given twice: %v", s.steps)
					l.local = true
				}
			case err != nil:
				s.leaves(l, w)
			default:
				s.begin(l, w)
			}
		default:
		}
	}
	return moved
}

// begin is for a waiter with the turn.
func (s *story) begin(l *storyLock, w *Waiter) {
	require.Nil(s.t, l.asking, "two attempts at once: %v", s.steps)
	l.asking, l.asked = w, false
	l.place = (s.owners[w] != "" || w.Listens()) && s.takePlace(w)
}

func (s *story) takePlace(w *Waiter) bool {
	ok := w.TakePlace(s.owner(w))
	if ok {
		s.owners[w] = s.owner(w)
	}
	return ok
}

// meanwhile lets events happen and arrive before an answer.
func (s *story) meanwhile(l *storyLock) {
	if l.holder == stranger && s.rnd.IntN(3) == 0 {
		s.release(l, "")
	}
	for range s.rnd.IntN(3) {
		s.arrive()
	}
}

// ask runs an attempt at the server, or delivers its answer.
func (s *story) ask(l *storyLock) bool {
	w := l.asking
	switch {
	case w == nil:
		return false
	case !l.asked:
		l.asked, l.got, l.forced, l.joined = true, l.holder == "" || l.holder == s.owner(w), false, false
		switch {
		case l.got:
			l.holder = s.owner(w)
			l.queue = slices.DeleteFunc(l.queue, func(x string) bool { return x == l.holder })
		case l.place && slices.Contains(l.queue, s.owner(w)):
			l.joined = true
		case l.place && s.rnd.IntN(8) > 0: // or Redis has no memory for it
			l.joined = true
			l.queue = append(l.queue, s.owner(w))
		}
	default:
		s.meanwhile(l)
		l.asking = nil
		if l.got {
			l.local = !l.forced
			l.drop(w)
			w.Done(time.Hour)
		} else {
			w.Held(-1, l.joined)
		}
	}
	return true
}

// unlock ends a hold in this process.
func (s *story) unlock(l *storyLock) {
	if w := claimOf(s.hub, l.q); w != nil {
		s.note("%s: hand-off", l.q.Lock)
		s.handOff(l, w)
		return
	}
	s.note("%s: unlock", l.q.Lock)
	s.release(l, "")
}

// handOff unlocks with a claimed waiter.
func (s *story) handOff(l *storyLock, w *Waiter) {
	next := s.owner(w)
	stay := s.rnd.IntN(2) == 0 || !s.takePlace(w)
	ran := s.rnd.IntN(4) > 0
	switch {
	case !ran:
		s.release(l, "")
	case stay:
		l.holder = next
		l.queue = slices.DeleteFunc(l.queue, func(x string) bool { return x == next })
	default:
		s.release(l, next)
	}
	s.meanwhile(l)
	if s.rnd.IntN(6) == 0 {
		s.note("the claimed one gives up")
		require.Equal(s.t, Claimed, w.Leave())
	}
	var kept bool
	local := ran && l.holder == next && w.Given() == nil
	switch {
	case !ran || s.rnd.IntN(4) == 0:
		s.note("in doubt")
		s.owners[w] = next
		kept, local = w.Unclaim(), false
	case local:
		kept = w.Grant(time.Hour)
	default:
		kept = w.Queued(-1)
	}
	switch {
	case !kept:
		require.Equal(s.t, Left, w.Leave())
		s.owners[w] = next
		s.leaves(l, w)
	case local:
		l.local = true
	}
}

// serve advances the link's command, or the stream, by one step.
func (s *story) serve() bool {
	switch {
	case s.cmd == noOp:
		if s.cmd = s.take(); s.cmd == noOp {
			return false
		}
		s.cmdAt, s.sub = 0, s.hub.subs[s.ch]
	case s.cmdAt == 0:
		s.cmdAt = 1
		s.subscribed, s.outside = s.cmd == subscribing, len(s.sub.names) < 3
		kind := map[op]string{subscribing: "subscribe", unsubscribing: "unsubscribe"}[s.cmd]
		s.stream = append(s.stream, func() { s.cmdAt = 2; s.confirm(kind) })
	case s.cmdAt == 2:
		s.cmd = noOp
		s.hub.mu.Lock()
		s.link.finish(s.sub, nil)
		s.hub.mu.Unlock()
	default:
		return false
	}
	return true
}

func (s *story) arrive() bool {
	if len(s.stream) == 0 {
		return false
	}
	arrives := s.stream[0]
	s.stream = s.stream[1:]
	arrives()
	return true
}

func (s *story) step() {
	l := &s.locks[s.rnd.IntN(2)]
	switch s.rnd.IntN(24) {
	case 0, 1, 2:
		w := &Waiter{Until: time.Now().Add(time.Hour)}
		s.note("%s: join", l.q.Lock)
		var turn bool
		if s.rnd.IntN(3) == 0 {
			if !s.hub.JoinFirst(w, l.q) {
				return
			}
			turn = true
		} else {
			turn = s.hub.Join(w, l.q)
		}
		l.waiters = append(l.waiters, w)
		if turn {
			s.begin(l, w)
		}
	case 3, 4, 5, 6:
		s.note("%s: ask", l.q.Lock)
		s.ask(l)
	case 7:
		if w := l.asking; w != nil {
			s.note("%s: the one that asks gives up", l.q.Lock)
			l.asking = nil
			require.Equal(s.t, Left, w.Leave())
			s.owners[w] = s.owner(w) // it may have got the lock
			s.leaves(l, w)
		}
	case 8:
		if n := len(l.waiters); n > 0 {
			w := l.waiters[s.rnd.IntN(n)]
			if w != l.asking && len(w.turn) == 0 {
				s.note("%s: leave", l.q.Lock)
				require.Equal(s.t, Left, w.Leave())
				s.leaves(l, w)
			}
		}
	case 9, 10:
		switch {
		case l.asking != nil && l.asked && l.got && !l.forced && l.holder == s.owner(l.asking):
			s.note("%s: forced before the answer arrives", l.q.Lock)
			l.forced, l.holder = true, ""
			s.publish(false, "0")
		case l.local:
			s.unlock(l)
		case l.holder == stranger:
			s.note("%s: unlocked by another process", l.q.Lock)
			s.release(l, "")
		}
	case 11:
		if l.holder == "" {
			s.note("%s: taken by another process", l.q.Lock)
			l.holder = stranger
		}
	case 12, 13:
		s.note("serve")
		s.serve()
	case 14, 15:
		s.note("arrive")
		s.arrive()
	case 16:
		if s.rnd.IntN(6) == 0 {
			s.note("down")
			s.stream, s.subscribed, s.cmd = nil, false, noOp
			s.link.down(io.EOF, false)
		}
	case 17:
		if s.subscribed && s.rnd.IntN(4) == 0 {
			s.note("moved")
			s.subscribed = false
			s.stream = append(s.stream, func() { s.confirm("unsubscribe") })
		}
	case 18:
		s.note("lapse")
		s.lapse()
	case 19:
		s.note("%s: hear", l.q.Lock)
		s.hear(l)
	case 20:
		if n := len(l.waiters); n > 0 {
			if e := l.waiters[s.rnd.IntN(n)].expiry; e != nil {
				s.note("%s: one has waited long enough", l.q.Lock)
				e.fire()
			}
		}
	case 21:
		if l.holder != "" && len(l.queue) < 3 {
			s.note("%s: another process waits", l.q.Lock)
			l.queue = append(l.queue, stranger)
		}
	case 22:
		s.note("%s: sweep", l.q.Lock)
		s.sweep(l)
	case 23:
		s.note("%s: a stranger looks", l.q.Lock)
		s.look(l)
	}
}

func (s *story) settle() {
	for moved := true; moved; {
		moved = s.serve() || s.arrive()
		for i := range s.locks {
			l := &s.locks[i]
			for _, f := range []func(*storyLock) bool{s.hear, s.ask, s.sweep, s.look} {
				moved = f(l) || moved
			}
		}
	}
}

func TestStories(t *testing.T) {
	t.Parallel()
	rounds := 2500
	if testing.Short() {
		rounds = 500
	}
	still(t, func(t *testing.T) {
		for range rounds {
			seed := rand.Uint64()
			s := &story{manualHub: newManualHub(t), rnd: rand.New(rand.NewPCG(seed, 0)), owners: make(map[*Waiter]string)}
			for i, name := range []string{"x", "{x}"} {
				s.locks[i].q = Queue{Lock: name, Channel: s.ch, Places: true}
			}
			for range 20 + s.rnd.IntN(150) {
				s.step()
			}
			for {
				s.settle()
				left := 0
				for i := range s.locks {
					l := &s.locks[i]
					if l.holder == "" {
						require.Empty(t, l.waiters, "seed %d: somebody sleeps and %s is free: %v", seed, l.q.Lock, s.steps)
					}
					ours := func(owner string) bool { return owner != stranger }
					told := slices.ContainsFunc(l.queue, ours) || s.subscribed && s.outside || l.local
					require.True(t, len(l.waiters) == 0 || told, "seed %d: no message would wake the waiters for %s: %v", seed, l.q.Lock, s.steps)
					require.True(t, l.local || l.holder == "" || l.holder == stranger, "seed %d: the holder of %s is unknown: %v", seed, l.q.Lock, s.steps)
					left += len(l.waiters)
					if l.local {
						s.unlock(l)
					} else if l.holder != "" {
						s.release(l, "")
					}
				}
				if left == 0 {
					break
				}
			}
			s.lapse()
			s.settle()
			require.Zero(t, s.hub.Len(), "seed %d: %v", seed, s.steps)
			require.Empty(t, s.hub.subs)
			require.False(t, s.subscribed)
			s.hub.Close()
		}
	})
}
