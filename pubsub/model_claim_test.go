package pubsub

import (
	"fmt"
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/testing/require"
)

// claimStep is a step of the model for claims.
func (m *model) claimStep() string {
	if !m.claimed && m.rnd.IntN(4) == 0 {
		return m.passStep()
	}
	if !m.claimed {
		m.local = 0
		if m.each || m.rnd.IntN(4) == 0 {
			if !m.each && m.rnd.IntN(2) == 0 {
				m.hub.EndingForAll(m.q(), time.Duration(m.rnd.IntN(2)))
				if t := m.topic(); t != nil && t.courtesy.ownUnlock && m.late == nil && m.rnd.IntN(2) == 0 {
					m.event()
					m.ended, m.heard = m.clock, m.clock
					m.hub.conns.message(m.ch, "0")
				}
				return "gives way"
			}
			m.hub.Ending(m.q())
			return "ending"
		}
		w := claimOf(m.hub, m.q())
		if w == nil {
			for _, x := range m.queue {
				require.True(m.t, m.turn != nil || x.err != nil, "not claimed: %v", m.steps)
			}
			return "nobody to claim"
		}
		require.Nil(m.t, m.turn, "claimed past a turn: %v", m.steps)
		m.moved("Claim", w)
		m.turn, m.joined, m.claimed, m.gave, m.given = w, false, true, false, 0
		m.clock++
		m.claimAt = m.clock
		return "claim"
	}
	switch m.rnd.IntN(4) {
	case 0:
		m.gave = true
		require.Equal(m.t, Claimed, m.turn.Leave())
		m.moved("Leave", m.turn)
		return "claimed one gives up"
	case 1:
		w, known := m.turn, m.local
		ttl := m.got(m.claimAt)
		granted := w.Grant(ttl)
		m.moved("Grant", w)
		require.Equal(m.t, !m.gave, granted)
		if granted {
			require.Nil(m.t, w.Given(), "it is another hold: %v", m.steps)
			m.claimed = false
			m.out(w)
			return "grant"
		}
		m.claimed, m.local = false, known // another waiter here may have been given the lock meanwhile
		m.leaveInTurn()
		return "grant of one that gave up"
	case 2:
		m.endClaim("Queued", func(w *Waiter) bool { return w.Queued([]time.Duration{-1, time.Hour}[m.rnd.IntN(2)]) })
		return "queued"
	default:
		m.unclaim()
		return "unclaim"
	}
}

// passStep ends a hold that is passed on to the next waiter.
func (m *model) passStep() string {
	var next *Waiter
	if i := slices.IndexFunc(m.queue, func(w *Waiter) bool { return w.err == nil }); i >= 0 {
		next = m.queue[i]
		next.Value = &taker{can: m.rnd.IntN(4) > 0}
	}
	known := m.topic() != nil && !m.topic().localHold.IsZero()
	can := next != nil && known && m.turn == nil && !m.placed[next] && next.Value.(*taker).can
	require.Equal(m.t, can, m.hub.Pass(m.q(), m, time.Hour), "%v", m.steps)
	if !can {
		return "not passed on"
	}
	m.clock++
	m.began, m.local = m.clock, m.clock
	m.moved("Pass", next)
	m.out(next)
	return "passed on"
}

func (m *model) unclaim() {
	if m.given == 0 {
		m.event()
	}
	m.endClaim("Unclaim", (*Waiter).Unclaim)
}

func (m *model) endClaim(name string, end func(w *Waiter) bool) {
	w := m.turn
	m.claimed = false
	require.Equal(m.t, !m.gave, end(w))
	m.moved(name, w)
	if m.gave {
		m.leaveInTurn()
		return
	}
	m.turnEnded(w)
}

func (m *model) leaveInTurn() {
	w := m.turn
	m.turn, m.given = nil, 0
	m.drop(w)
	m.event()
	require.Equal(m.t, Left, w.Leave())
	m.moved("Leave", w)
}

// turnEnded handles a turn or a claim that ended without the lock, unless another process has granted it.
func (m *model) turnEnded(w *Waiter) {
	m.turn = nil
	if m.given == 0 {
		require.Equal(m.t, unclaimed, w.claim, "%v", m.steps)
		return
	}
	if m.local = m.given; m.given < m.ended { // news that came since
		m.local = 0
	}
	require.NotNil(m.t, w.Given())
	m.out(w)
}

// out handles a waiter that learned that it has the lock and left the queue.
func (m *model) out(w *Waiter) {
	if m.turn == w {
		m.turn = nil
	}
	if m.turn == nil { // otherwise the one with the turn may still have been given the lock before
		m.given = 0
	}
	require.Len(m.t, w.turn, 1, "no signal: %v", m.steps)
	<-w.turn
	granted, _ := w.News()
	require.True(m.t, granted)
	require.Equal(m.t, Granted, w.Leave())
	m.moved("Leave", w)
	delete(m.states.now, w)
	m.drop(w)
}

// placeStep makes the waiter with the turn, or its claimant, take the process's place.
func (m *model) placeStep() string {
	w := m.turn
	if w == nil {
		return "nobody to take the place"
	}
	free := (m.each || len(m.placed) == 0 || m.placed[w]) && m.topic().sub != nil
	require.Equal(m.t, free && m.topic().sub.reach().live, w.Listens(), "%v", m.steps)
	if !m.claimed && !w.Listens() {
		return "would not hear of a grant"
	}
	require.Equal(m.t, free, w.TakePlace(fmt.Sprintf("%p", w)), "%v", m.steps)
	if free {
		m.placed[w] = true
	}
	return "take the place"
}

// grantStep sends a message to this process alone.
func (m *model) grantStep() string {
	m.hearsOfIt()
	t := m.topic()
	if t == nil || !m.sub().confirmed {
		return "told nobody"
	}
	tell := func(format string, args ...any) {
		m.hub.conns.message(Channel{Name: m.ch.Name + ":" + me}, fmt.Sprintf(format, args...))
	}
	var w *Waiter
	for _, x := range m.queue {
		if m.placed[x] && (w == nil || m.rnd.IntN(2) == 0) {
			w = x
		}
	}
	switch m.rnd.IntN(5) {
	case 0:
		if len(m.queue) > 0 {
			if x := m.queue[m.rnd.IntN(len(m.queue))]; !m.placed[x] {
				tell("%p 2000 1 -", x)
				return "given to one without the place"
			}
		}
		return "given to nobody"
	case 1:
		tell("%s", []string{"? 0", "", "\x00 2000 0 -1"}[m.rnd.IntN(3)])
		if w != nil && !m.each {
			m.event()
		}
		return "look"
	case 3:
		if w != nil {
			m.event()
			tell("? 0 %p", w)
			require.True(m.t, w.isDue() || t.current == w || w.err != nil, "%v", m.steps)
		}
		return "one is to look"
	case 2:
		before := t.timerAt
		tell("? 5")
		require.True(m.t, w == nil || m.each || !t.timerAt.IsZero() && (before.IsZero() || !t.timerAt.After(before)), "%v", m.steps)
		return "look later"
	default:
		if w == nil {
			return "given to nobody"
		}
		m.clock++
		if w.isDue() {
			m.event()
		}
		tell("%p 2000 0 7", w)
		m.moved("given", w)
		delete(m.placed, w)
		if w == m.turn {
			m.given = m.clock
			return "given in its turn"
		}
		m.local = m.clock
		require.Equal(m.t, Grant{Lease: 2 * time.Second, Token: 7}, said(w))
		m.out(w)
		return "given"
	}
}
