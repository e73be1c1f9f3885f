package pubsub

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// The steps of the model are actions of callers, replies of the server, and the passing of time. Each acts on the hub and records the
// effect it must have.

func (m *model) joins() {
	w := &Waiter{Until: time.Now().Add(10 * time.Hour), Shared: m.shares && m.rnd.IntN(3) > 0}
	w.Joint = w.Shared && m.rnd.IntN(3) > 0
	w.Value = sharer(w.Joint)
	w.Ahead = m.shares && !w.Shared && m.rnd.IntN(4) == 0
	if m.rnd.IntN(16) == 0 {
		w.Until = time.Now()
	}
	m.note("join")
	if m.rnd.IntN(8) == 0 {
		m.note("yield")
		m.hub.yields = yields{} // the last is long ago
		m.hub.Yield(m.q())
	}
	turn := m.hub.Join(w, m.q())
	m.moved("Join", w)
	switch {
	case !turn && len(m.live()) == 0 && m.topic().polite:
		m.note("yields")
		m.yielded++
		m.event()
	case turn && w.Shared && (!w.Joint || len(m.live()) > 0):
		require.True(m.t, len(m.live()) == 0 || m.shareAsked(), "apart beside others that wait")
		m.goApart(w)
		return
	case turn:
		require.Empty(m.t, m.live(), "a turn at once behind others")
		m.turnBegins(w)
	case len(m.live()) == 0:
		m.note("waits at once")
		require.Positive(m.t, m.local, "not known to be held: %v", m.steps)
		require.Less(m.t, m.stood, m.local, "a message may have been missed: %v", m.steps)
		require.True(m.t, m.sub().live(), "a message may be missed: %v", m.steps)
		m.waited++
	case w.Ahead:
		m.event()
		m.queue = slices.Insert(m.queue, 0, w)
		return
	}
	m.queue = append(m.queue, w)
}

func (m *model) joinsFirst() {
	m.note("join first")
	w := &Waiter{Shared: m.shares && m.rnd.IntN(2) == 0}
	got := m.hub.JoinFirst(w, m.q())
	m.moved("JoinFirst", w)
	require.Equal(m.t, len(m.live()) == 0 || w.Shared && m.shareAsked(), got)
	if got && w.Shared {
		m.goApart(w)
	} else if got {
		m.queue = append(m.queue, w)
		m.turnBegins(w)
	}
}

// turnBegins starts a turn that came with Join, without a signal.
func (m *model) turnBegins(w *Waiter) {
	m.turn, m.joined = w, true
	m.event()
	m.clock++
	m.began = m.clock
}

// refusedInTurn makes a turn's attempt find the lock held.
func (m *model) refusedInTurn() {
	w := m.turn
	if w == nil || m.claimed {
		return
	}
	if m.each && w.Listens() && !w.isDue() { // a fair lock's waiter does not do without
		m.note(m.placeStep())
	}
	placed := m.placed[w] && (m.each || m.rnd.IntN(4) > 0)
	m.note(fmt.Sprint("held, placed: ", placed))
	if m.placed[w] && !placed {
		delete(m.placed, w)
		if m.unheard > m.began {
			m.event()
		}
	}
	if m.local <= m.began { // otherwise another waiter here was given the lock meanwhile
		m.local = 0
	}
	w.Held([]time.Duration{-1, time.Hour}[m.rnd.IntN(2)], placed)
	m.moved("Held", w)
	m.turnEnded(w)
}

// doneInTurn makes a turn's attempt get the lock.
func (m *model) doneInTurn() {
	w := m.turn
	if w == nil || m.claimed {
		return
	}
	m.note("done")
	m.turn = nil
	m.drop(w)
	m.given = 0
	ttl := m.got(m.began)
	if w.Shared {
		m.local = 0
	}
	w.Done(ttl)
	if w.Shared {
		m.letIn(w)
	}
	m.moved("Done", w)
}

// leavesInTurn makes the waiter with the turn give up, perhaps because its attempt got no reply.
func (m *model) leavesInTurn() {
	if m.turn == nil || m.claimed {
		return
	}
	m.note("leave in turn")
	if m.rnd.IntN(4) == 0 {
		m.note("unanswered")
		m.turn.Unanswered(io.ErrUnexpectedEOF)
		m.moved("Unanswered", m.turn)
	}
	m.leaveInTurn()
}

// leavesTheQueue makes another waiter give up.
func (m *model) leavesTheQueue() {
	waiting := slices.DeleteFunc(slices.Clone(m.queue), func(w *Waiter) bool { return w == m.turn })
	if len(waiting) == 0 {
		return
	}
	m.note("leave")
	w := waiting[m.rnd.IntN(len(waiting))]
	if w.isDue() || m.placed[w] && !m.each {
		m.event()
	}
	m.drop(w)
	w.Leave()
	m.moved("Leave", w)
}

func (m *model) messageComes() {
	m.hearsOfIt()
	m.note("message")
	t := m.topic()
	if t == nil || !m.sub().confirmed {
		return
	}
	text := []string{"0", "1", "1", "?", "00", "01", "3000", "", "\x00\xff 0"}[m.rnd.IntN(9)]
	if m.shares && m.rnd.IntN(4) == 0 {
		m.note("ending for all")
		m.local, m.ended = 0, m.clock
		m.hub.EndingForAll(m.q(), 0)
	}
	switch {
	case m.shares && (text == "00" || text == "3000"):
		m.hub.conns.message(m.ch, text)
		return
	case text == "00" && len(m.placed) > 0 && !m.each:
		m.clock++
		m.unheard = m.clock
	default:
		m.event()
	}
	m.local, m.ended, m.heard = 0, m.clock, m.clock
	m.hub.conns.message(m.ch, text)
	if m.rnd.IntN(8) == 0 {
		m.note("alone")
		m.hub.Alone(m.q())
	}
}

// answerComes takes the next command, or confirms the current one.
func (m *model) answerComes() {
	if m.pending == noOp {
		m.note("take")
		m.pending = m.take()
		return
	}
	m.note("confirm")
	m.confirmation()
}

// commandEnds ends the current command, successfully or not.
func (m *model) commandEnds() {
	if m.pending == subscribing && !m.sub().confirmed && m.rnd.IntN(2) == 0 {
		m.note("finish before the confirmation")
		require.False(m.t, m.finish(nil))
		return
	}
	if m.pending == noOp {
		return
	}
	m.pending = noOp
	switch {
	case m.sub().op == subscribing && !m.sub().confirmed:
		m.note("try again later")
		m.retry = m.finish(m.later) || m.retry
	case m.sub().op == unsubscribing && m.sub().confirmed:
		m.note("not unsubscribed")
		require.False(m.t, m.finish(m.later))
	default:
		m.note("finish")
		require.False(m.t, m.finish(nil))
	}
}

// connectionFails breaks the connection, or ends an idle connection.
func (m *model) connectionFails() {
	if m.rnd.IntN(4) > 0 {
		m.note("lapse")
		m.lapse()
		return
	}
	m.note("down")
	m.pending = noOp
	m.link.down(io.EOF, false)
}

// timePasses ends a pause of the link, the queue's timer or a waiter's time, or makes the server refuse the subscription.
func (m *model) timePasses() {
	switch t := m.topic(); {
	case m.retry:
		m.note("retry")
		m.retry = false
		m.link.requeue()
	case t != nil && len(m.queue) > 0 && m.rnd.IntN(2) == 0:
		m.note("expired")
		m.event()
		t.expired()
	case t != nil && len(m.queue) > 0 && m.rnd.IntN(4) == 0:
		m.note("refused")
		m.hub.mu.Lock()
		t.refuse(errors.New("refused"))
		if m.sub().op == noOp && !m.sub().queued && !m.sub().confirmed {
			t.need = false
		}
		m.hub.mu.Unlock()
	case len(m.queue) > 0:
		if w := m.queue[m.rnd.IntN(len(m.queue))]; w.expiry != nil {
			m.note("time is over")
			w.expiry.fire()
		}
	}
}

func (m *model) claims() { m.note(m.besideOr(m.claimStep)) }
func (m *model) places() { m.note(m.besideOr(m.placeStep)) }
func (m *model) grants() { m.note(m.besideOr(m.grantStep)) }

// besideOr is a step of waiters that ask for a share beside the queue, in runs without hand-offs. Otherwise it is step.
func (m *model) besideOr(step func() string) string {
	if m.shares {
		return m.apartStep()
	}
	return step()
}

// confirmation of the pending command arrives.
func (m *model) confirmation() {
	m.hearsOfIt() // a connection's events come one after the other
	switch m.pending {
	case subscribing:
		t, news := m.topic(), !m.sub().confirmed
		if t != nil && t.sub != nil && m.rnd.IntN(4) == 0 {
			m.note("heard of late")
			t.sub.listener = &late{listener: t, m: m, news: news}
			m.confirm("subscribe")
			return
		}
		m.confirmed(news)
		m.confirm("subscribe")
	case unsubscribing:
		m.confirm("unsubscribe")
	case noOp:
	}
}

func (m *model) confirmed(news bool) {
	if news {
		m.event()
	}
	m.clock++
	m.stood, m.heard = m.clock, m.clock
}

// late tells the queue later that its subscription is live: the connections do that without their lock.
type late struct {
	listener

	m    *model
	news bool
}

func (l *late) live() { l.m.late = l }

// hearsOfIt makes a queue hear that its subscription is live.
func (m *model) hearsOfIt() {
	l := m.late
	if l == nil {
		return
	}
	m.note("hears of it")
	m.late = nil
	if t, _ := l.listener.(*topic); t == m.topic() {
		m.confirmed(l.news)
		t.sub.listener = t
		m.lateNews++
	}
	l.listener.live()
	m.moved("", nil)
	m.check()
}

// shareAsked reports whether the first one asks for a share, and the others want only shares.
func (m *model) shareAsked() bool {
	exclusive := func(w *Waiter) bool { return !w.Shared }
	live := m.live()
	return len(live) > 0 && live[0] == m.turn && !slices.ContainsFunc(live, exclusive)
}

func (m *model) goApart(w *Waiter) {
	m.clock++
	m.apart[w] = m.clock
}

// sharer reports whether a waiter can have the share of a waiter before it.
type sharer bool

func (s sharer) Share(with any) bool { return bool(s && with.(sharer)) }

// letIn is for a share: those directly behind have it, too, or want theirs, and the next one behind them asks.
func (m *model) letIn(first *Waiter) {
	for _, w := range m.live() {
		if !w.Shared {
			break
		}
		m.drop(w)
		require.Len(m.t, w.turn, 1, "let in without a signal: %v", m.steps)
		<-w.turn
		if handed := first.Joint && w.Joint; !handed {
			m.goApart(w)
		} else {
			granted, err := w.News()
			require.True(m.t, granted && err == nil, "%v", m.steps)
			require.Equal(m.t, Granted, w.Leave(), "it has the share: %v", m.steps)
		}
	}
	m.event()
}

// apartStep ends an attempt beside the queue.
func (m *model) apartStep() string {
	for w, began := range m.apart {
		delete(m.apart, w)
		switch m.rnd.IntN(4) {
		case 0:
			w.Done(time.Hour)
			m.moved("Done", w)
			return "done apart"
		case 1:
			if m.rnd.IntN(2) == 0 {
				w.Unanswered(io.ErrUnexpectedEOF)
				m.moved("Unanswered", w)
			}
			w.Leave()
			m.moved("Leave", w)
			return "leave apart"
		default:
			if len(m.live()) == 0 { // its attempt is the one that counts
				m.began, m.news = began, m.heard
			}
			m.queue = append(m.queue, w)
			w.Held([]time.Duration{-1, time.Hour}[m.rnd.IntN(2)], false)
			m.moved("Held", w)
			return "held apart"
		}
	}
	return "nobody apart"
}
