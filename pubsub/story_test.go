package pubsub

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// story plays a hub, two locks with one channel, the server that has both, and the stream of what the server
// says on the connection, each a step behind the other. No holder's time ends in it, so that nothing but
// wake-ups brings a waiter to its lock. A waiter's time ends when the story says so.
type story struct {
	*desk
	rnd        *rand.Rand
	locks      [2]storyLock
	subscribed bool     // at the server
	stream     []string // what it has said that has not arrived
	cmd        op       // the link's, under way
	cmdAt      int      // 0: sent, 1: carried out, 2: confirmed
	steps      []string
}

type storyLock struct {
	q       Queue
	waiters []*Waiter
	held    bool
	local   bool    // by a waiter of this process
	asking  *Waiter // whose attempt is under way
	asked   bool    // the server has carried it out
	got     bool    // and granted it
	forced  bool    // and has lost it since
}

func (s *story) note(format string, args ...any) {
	s.steps = append(s.steps, fmt.Sprintf(format, args...))
}

func (s *story) publish() {
	if s.subscribed {
		s.stream = append(s.stream, "message")
	}
}

func (s *story) release(l *storyLock) {
	l.held, l.local = false, false
	s.publish()
}

func (l *storyLock) drop(w *Waiter) {
	l.waiters = slices.DeleteFunc(l.waiters, func(x *Waiter) bool { return x == w })
}

// hear lets the waiters of a lock look at their news.
func (s *story) hear(l *storyLock) (moved bool) {
	for _, w := range slices.Clone(l.waiters) {
		select {
		case <-w.turn:
			moved = true
			granted, err := w.News()
			switch {
			case granted:
				l.drop(w)
			case err != nil:
				l.drop(w)
				w.Leave()
			default:
				require.Nil(s.t, l.asking, "two attempts at once: %v", s.steps)
				l.asking, l.asked = w, false
			}
		default:
		}
	}
	return moved
}

// ask carries an attempt out at the server, or has its answer arrive.
func (s *story) ask(l *storyLock) bool {
	switch {
	case l.asking == nil:
		return false
	case !l.asked:
		l.asked, l.got, l.forced = true, !l.held, false
		if l.got {
			l.held = true
		}
	default:
		w := l.asking
		l.asking = nil
		if l.got {
			l.local = !l.forced
			l.drop(w)
			w.Done(time.Hour)
		} else {
			w.Held(-1)
		}
	}
	return true
}

// serve moves the link's command, or the stream, one step on.
func (s *story) serve() bool {
	switch {
	case s.cmd == noOp:
		if s.cmd = s.take(); s.cmd == noOp {
			return false
		}
		s.cmdAt = 0
	case s.cmdAt == 0:
		s.cmdAt = 1
		s.subscribed = s.cmd == subscribing
		s.stream = append(s.stream, map[op]string{subscribing: "subscribe", unsubscribing: "unsubscribe"}[s.cmd]+"!")
	case s.cmdAt == 2:
		s.cmd = noOp
		s.hub.mu.Lock()
		s.link.finish(s.hub.subs[s.ch], nil)
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
	what := s.stream[0]
	s.stream = s.stream[1:]
	switch what {
	case "message":
		s.hub.message(s.ch, "0")
	case "unsubscribe":
		s.confirm("unsubscribe")
	default:
		s.cmdAt = 2
		s.confirm(what[:len(what)-1])
	}
	return true
}

func (s *story) step() {
	l := &s.locks[s.rnd.IntN(2)]
	switch s.rnd.IntN(21) {
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
			require.Nil(s.t, l.asking, "two attempts at once: %v", s.steps)
			l.asking, l.asked = w, false
		}
	case 3, 4, 5, 6:
		s.note("%s: ask", l.q.Lock)
		s.ask(l)
	case 7:
		if w := l.asking; w != nil {
			s.note("%s: the one that asks gives up", l.q.Lock)
			if l.asked && l.got && !l.forced {
				s.release(l)
			}
			l.asking = nil
			l.drop(w)
			w.Leave()
		}
	case 8:
		if n := len(l.waiters); n > 0 {
			w := l.waiters[s.rnd.IntN(n)]
			if w != l.asking && len(w.turn) == 0 {
				s.note("%s: leave", l.q.Lock)
				l.drop(w)
				require.Equal(s.t, Left, w.Leave())
			}
		}
	case 9, 10:
		if l.held {
			if l.asking != nil && l.asked && l.got && !l.forced {
				s.note("%s: forced before the answer arrives", l.q.Lock)
				l.forced = true
				s.release(l)
				return
			}
			if l.local && s.rnd.IntN(2) == 0 {
				if w := s.hub.Claim(l.q); w != nil {
					switch s.rnd.IntN(3) {
					case 0:
						s.note("%s: hand-off", l.q.Lock)
						require.True(s.t, w.Grant(time.Hour))
						return
					case 1:
						s.note("%s: hand-off failed", l.q.Lock)
						s.release(l)
						w.Unclaim(false)
					default:
						s.note("%s: hand-off in doubt", l.q.Lock)
						s.release(l)
						w.Unclaim(true)
					}
					return
				}
			}
			if l.local && s.rnd.IntN(2) == 0 {
				s.note("%s: unlock", l.q.Lock)
				s.hub.Ending(l.q)
			} else {
				s.note("%s: unlocked by another process", l.q.Lock)
			}
			s.release(l)
		}
	case 11:
		if !l.held {
			s.note("%s: taken by another process", l.q.Lock)
			l.held = true
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
			s.stream = append(s.stream, "unsubscribe")
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
	}
}

func (s *story) settle() {
	for moved := true; moved; {
		moved = s.serve() || s.arrive()
		for i := range s.locks {
			l := &s.locks[i]
			moved = s.hear(l) || s.ask(l) || moved
		}
	}
}

func TestStories(t *testing.T) {
	t.Parallel()
	rounds := 5000
	if testing.Short() {
		rounds = 500
	}
	still(t, func(t *testing.T) {
		for range rounds {
			seed := rand.Uint64()
			s := &story{desk: newDesk(t), rnd: rand.New(rand.NewPCG(seed, 0))}
			for i, name := range []string{"x", "{x}"} {
				s.locks[i].q = Queue{Lock: name, Channel: s.ch}
			}
			for range 20 + s.rnd.IntN(150) {
				s.step()
			}
			for {
				s.settle()
				left := 0
				for i := range s.locks {
					l := &s.locks[i]
					if !l.held {
						require.Empty(t, l.waiters, "seed %d: somebody sleeps and %s is free: %v", seed, l.q.Lock, s.steps)
					}
					left += len(l.waiters)
					if l.held {
						s.release(l)
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
