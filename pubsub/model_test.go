package pubsub

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
)

// desk is a hub whose only link is the test: it takes the commands, and says what came of them.
type desk struct {
	t    *testing.T
	hub  *Hub
	link *link
	ch   Channel
	each bool // each waiter has a place

	inLine bool // the process is to have a place

	shares bool // some want a share of the lock, and nobody hands it off
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{t: t, hub: New(nil, me), ch: Channel{Name: "c"}}
	d.link = &link{hub: d.hub, work: make(chan struct{}, 1)}
	d.hub.links[plainLink] = d.link
	t.Cleanup(d.hub.Close)
	return d
}

func (d *desk) q() Queue {
	return Queue{Channel: d.ch, Places: d.inLine, Each: d.each, Shared: d.shares}
}

func (d *desk) topic() *topic { return d.hub.topics[d.q()] }

// subOf returns the subscription of t, an idle one if it never needed any.
func subOf(t *topic) *subscription {
	if t.sub == nil {
		return &subscription{hub: t.hub}
	}
	return t.sub
}

// take returns the topic's next command, noOp if there is none.
func (d *desk) take() op {
	if batch, _ := d.link.take(); len(batch) > 0 {
		return batch[0].op
	}
	return noOp
}

// confirm is the server's word on all channels of a subscription.
func (d *desk) confirm(kind string) {
	for _, name := range []string{d.ch.Name, d.ch.Name + line, d.ch.Name + d.hub.grants} {
		d.confirmOne(kind, name)
	}
}

func (d *desk) confirmOne(kind, name string) {
	d.link.onSubscription(d.link.epoch, rueidis.PubSubSubscription{Kind: kind, Channel: name})
}

// finish ends the command under way with the server's answer.
func (d *desk) finish(err error) (again bool) {
	d.hub.mu.Lock()
	defer d.hub.mu.Unlock()
	return d.link.finish(subOf(d.topic()), err)
}

// refused has the server refuse the subscription, with the channel for grants and then without.
func (d *desk) refused(err error) {
	d.t.Helper()
	require.False(d.t, d.finish(err))
	require.Equal(d.t, subscribing, d.take())
	require.False(d.t, d.finish(err))
}

// obey carries out what the link is asked for, until nothing is left.
func (d *desk) obey() {
	d.lapse()
	for o := d.take(); o != noOp; o = d.take() {
		d.confirm(map[op]string{subscribing: "subscribe", unsubscribing: "unsubscribe"}[o])
		d.finish(nil)
	}
}

// serverError is an error reply of a real server; only the client can make one.
func serverError(t *testing.T, text string) error {
	t.Helper()
	c := redistest.Dial(t, redistest.Shared(t))
	script := "return redis.error_reply(ARGV[1])"
	err := c.Do(t.Context(), c.B().Eval().Script(script).Numkeys(0).Arg(text).Build()).Error()
	_, ok := rueidis.IsRedisErr(err)
	require.True(t, ok)
	require.ErrorContains(t, err, text)
	return err
}

// model drives a hub at random and knows what must never happen.
//
// Whatever may be news about the lock (a message, a confirmation, the end of the time, a wake-up
// that somebody passed on) is an event. It is answered by a turn that begins after it. The
// invariant I-wake is then: news without an answer has a waiter that is due; and without news
// the subscription is live, or is being asked for. Whoever joins an empty queue has a turn at once, unless the last
// attempt got the lock, no news of its end has come, and none could have been missed.
type model struct {
	*desk
	rnd     *rand.Rand
	queue   []*Waiter // in the order of joining
	turn    *Waiter   // whose turn began last, if it has not ended
	joined  bool      // it began with Join, so that nothing was signalled
	claimed bool      // it is no turn but a claim
	gave    bool      // the claimed one gave up
	clock   int
	news    int // when the last event was
	began   int // when the last turn began
	claimAt int // when the last claim did
	local   int // when the attempt began that got the lock for this process, which still has it; 0 if there is none
	ended   int // when the last message came, which may be of the end of that hold
	stood   int // when the subscription was confirmed last
	waited  int // how many joined an empty queue and got no turn
	polite  int // how often others were let go first
	placed  map[*Waiter]bool
	given   int             // when the one that has the turn was given the lock; 0: it was not
	unheard int             // when the last '00' came, which was not for the one with the place
	apart   map[*Waiter]int // those that ask beside the queue, and when they began to
	heard   int             // when a message or a confirmation came last, also while the queue was empty
	retry   bool
	later   error // a server's answer: not now
	pending op    // taken from the link, not finished
	steps   []string
	states  states
}

// states are those of all waiters that the model knows, and the table of queue.go with the rows taken.
type states struct {
	now   map[*Waiter]string
	table map[string]int // "event from to": how often the model has taken it
}

// stateOf derives the state of a waiter, in the words of queue.go.
func stateOf(w *Waiter) string {
	switch {
	case w.topic == nil:
		return "new"
	case w.claim == handed:
		return "handed"
	case w.claim == abandoned:
		return "abandoned"
	case w.claim == claimed:
		return "claimed"
	case w.topic.current == w:
		return "turn"
	case w.askingConcurrently:
		return "apart"
	case w.prev == nil && w.topic.first != w:
		return "out"
	case w.err != nil:
		return "stopped"
	case w.due:
		return "due"
	}
	return "waiting"
}

// readStates reads the table in queue.go.
func readStates(t *testing.T) map[string]int {
	t.Helper()
	text, err := os.ReadFile("queue.go")
	require.NoError(t, err)
	_, text, ok := bytes.Cut(text, []byte("//\tevent "))
	require.True(t, ok)
	table := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		line, row := strings.CutPrefix(line, "//\t")
		if f := strings.Fields(line); row {
			table[f[0]+" "+f[1]+" "+f[3]] = 0
		} else if len(table) > 0 {
			break
		}
	}
	return table
}

// moved checks what became of all waiters against the table; event is the call that was made for w.
func (m *model) moved(event string, w *Waiter) {
	m.t.Helper()
	if w != nil && m.states.now[w] == "" {
		m.states.now[w] = "new"
	}
	for x, from := range m.states.now {
		to := stateOf(x)
		row := event + " " + from + " " + to
		if x != w {
			if from == to {
				continue
			}
			row = map[bool]string{true: "stop ", false: "wake "}[to == "stopped"] + from + " " + to
		}
		_, known := m.states.table[row]
		require.True(m.t, known || event == "Unanswered" && x == w, "not in the table of queue.go: %s, %v", row, m.steps)
		if known {
			m.states.table[row]++
		}
		m.states.now[x] = to
		if to == "out" {
			delete(m.states.now, x)
		}
	}
}

func (m *model) event() {
	m.clock++
	m.news = m.clock
}

func (m *model) step() {
	var waiting []*Waiter
	for _, w := range m.queue {
		if w != m.turn {
			waiting = append(waiting, w)
		}
	}
	note := func(s string) { m.steps = append(m.steps, s) }
	step := m.rnd.IntN(20)
	if m.local > 0 && len(m.queue) == 0 && m.rnd.IntN(2) == 0 {
		step = 0 // rare, and of interest
	}
	switch step {
	case 0, 1:
		w := &Waiter{Until: time.Now().Add(time.Hour), Shared: m.shares && m.rnd.IntN(3) > 0}
		w.Joint = w.Shared && m.rnd.IntN(3) > 0
		w.Value = sharer(w.Joint)
		w.Ahead = m.shares && !w.Shared && m.rnd.IntN(4) == 0
		if m.rnd.IntN(16) == 0 {
			w.Until = time.Now()
		}
		note("join")
		turn := m.hub.Join(w, m.q())
		m.moved("Join", w)
		switch {
		case turn && w.Shared && (!w.Joint || len(m.queue) > 0):
			require.True(m.t, len(m.queue) == 0 || m.shareAsked(), "apart beside others that wait")
			m.goApart(w)
			return
		case turn:
			require.Empty(m.t, m.queue, "a turn at once behind others")
			m.turn, m.joined = w, true
			m.event()
			m.clock++
			m.began = m.clock
		case len(m.queue) == 0:
			note("waits at once")
			require.Positive(m.t, m.local, "not known to be held: %v", m.steps)
			require.Less(m.t, m.stood, m.local, "a message may have been missed: %v", m.steps)
			require.True(m.t, subOf(m.topic()).live(), "a message may be missed: %v", m.steps)
			m.waited++
		case w.Ahead:
			m.event()
			m.queue = slices.Insert(m.queue, 0, w)
			m.moved("", nil)
			m.check()
			return
		}
		m.queue = append(m.queue, w)
	case 2:
		note("join first")
		w := &Waiter{Shared: m.shares && m.rnd.IntN(2) == 0}
		got := m.hub.JoinFirst(w, m.q())
		m.moved("JoinFirst", w)
		require.Equal(m.t, len(m.queue) == 0 || w.Shared && m.shareAsked(), got)
		if got && w.Shared {
			m.goApart(w)
		} else if got {
			m.queue, m.turn, m.joined = []*Waiter{w}, w, true
			m.event()
			m.clock++
			m.began = m.clock
		}
	case 3, 4:
		if m.turn != nil && !m.claimed {
			w := m.turn
			if m.each && w.Listens() && !w.due { // a fair lock's does not do without
				note(m.placeStep())
			}
			placed := m.placed[w] && (m.each || m.rnd.IntN(4) > 0)
			note(fmt.Sprint("held, placed: ", placed))
			if m.placed[w] && !placed {
				delete(m.placed, w)
				if m.unheard > m.began {
					m.event()
				}
			}
			m.local = 0
			w.Held([]time.Duration{-1, time.Hour}[m.rnd.IntN(2)], placed)
			m.moved("Held", w)
			m.turnEnded(w)
		}
	case 5:
		if w := m.turn; w != nil && !m.claimed {
			note("done")
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
	case 6:
		if m.turn != nil && !m.claimed {
			note("leave in turn")
			if m.rnd.IntN(4) == 0 {
				note("unanswered")
				m.turn.Unanswered(io.ErrUnexpectedEOF)
				m.moved("Unanswered", m.turn)
			}
			m.leaveInTurn()
		}
	case 7:
		if len(waiting) > 0 {
			note("leave")
			w := waiting[m.rnd.IntN(len(waiting))]
			if w.due || m.placed[w] && !m.each {
				m.event()
			}
			m.drop(w)
			w.Leave()
			m.moved("Leave", w)
		}
	case 8:
		note("message")
		if t := m.topic(); t != nil && subOf(t).confirmed {
			text := []string{"0", "1", "1", "?", "00"}[m.rnd.IntN(5)]
			if text == "00" && m.shares {
				m.hub.message(m.ch, text)
				break
			}
			if text == "00" && len(m.placed) > 0 && !m.each {
				m.clock++
				m.unheard = m.clock
			} else {
				m.event()
			}
			m.local, m.ended, m.heard = 0, m.clock, m.clock
			m.hub.message(m.ch, text)
			if m.rnd.IntN(8) == 0 {
				note("alone")
				m.hub.Alone(m.q())
			}
		}
	case 9:
		if m.pending == noOp {
			note("take")
			m.pending = m.take()
		} else {
			note("confirm")
			m.confirmation()
		}
	case 10, 11:
		t := m.topic()
		if m.pending == subscribing && !subOf(t).confirmed && m.rnd.IntN(2) == 0 {
			note("finish before the confirmation")
			require.False(m.t, m.finish(nil))
			break
		}
		if m.pending == noOp {
			break
		}
		m.pending = noOp
		switch {
		case subOf(t).op == subscribing && !subOf(t).confirmed:
			note("try again later")
			m.retry = m.finish(m.later) || m.retry
		case subOf(t).op == unsubscribing && subOf(t).confirmed:
			note("not unsubscribed")
			require.False(m.t, m.finish(m.later))
		default:
			note("finish")
			require.False(m.t, m.finish(nil))
		}
	case 12:
		if m.rnd.IntN(4) == 0 {
			note("down")
			m.pending = noOp
			m.link.down(io.EOF, false)
		} else {
			note("lapse")
			m.lapse()
		}
	case 13:
		switch t := m.topic(); {
		case m.retry:
			note("retry")
			m.retry = false
			m.link.requeue()
		case t != nil && len(m.queue) > 0 && m.rnd.IntN(2) == 0:
			note("expired")
			m.event()
			t.expired()
		case t != nil && len(m.queue) > 0 && m.rnd.IntN(4) == 0:
			note("refused")
			m.hub.mu.Lock()
			t.refuse(errors.New("refused"))
			if subOf(t).op == noOp && !subOf(t).queued && !subOf(t).confirmed {
				t.need = false
			}
			m.hub.mu.Unlock()
		case len(m.queue) > 0:
			if w := m.queue[m.rnd.IntN(len(m.queue))]; w.expiry != nil {
				note("time is over")
				w.expiry.fire()
			}
		}
	case 14, 15, 16, 17, 18, 19:
		switch {
		case m.shares:
			note(m.apartStep())
		case step < 16:
			note(m.claimStep())
		case step < 18:
			note(m.placeStep())
		default:
			note(m.grantStep())
		}
	}
	m.moved("", nil)
	m.check()
}

// confirmation of the pending command arrives.
func (m *model) confirmation() {
	switch m.pending {
	case subscribing:
		if !subOf(m.topic()).confirmed {
			m.event()
		}
		m.clock++
		m.stood, m.heard = m.clock, m.clock
		m.confirm("subscribe")
	case unsubscribing:
		m.confirm("unsubscribe")
	case noOp:
	}
}

// shareAsked reports whether the first one asks for a share, and the others wait for nothing else.
func (m *model) shareAsked() bool {
	exclusive := func(w *Waiter) bool { return !w.Shared }
	return len(m.queue) > 0 && m.queue[0] == m.turn && !slices.ContainsFunc(m.queue, exclusive)
}

func (m *model) goApart(w *Waiter) {
	m.clock++
	m.apart[w] = m.clock
}

// sharer says whether a waiter can have the share of one before it.
type sharer bool

func (s sharer) Share(with any) bool { return bool(s && with.(sharer)) }

// letIn is for a share: those directly behind have it, too, or want theirs, and the next one behind them asks.
func (m *model) letIn(first *Waiter) {
	for len(m.queue) > 0 && m.queue[0].Shared && m.queue[0].err == nil {
		w := m.queue[0]
		m.queue = m.queue[1:]
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
			if len(m.queue) == 0 { // its attempt is the one that counts
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

// got is for an attempt that got the lock; it says for how long.
func (m *model) got(began int) (ttl time.Duration) {
	if m.rnd.IntN(2) == 0 {
		m.local = 0
		return -1
	}
	if m.local = began; began < m.ended { // news that came before the answer
		m.local = 0
	}
	return time.Hour
}

func (m *model) drop(w *Waiter) {
	delete(m.placed, w)
	m.queue = slices.DeleteFunc(m.queue, func(x *Waiter) bool { return x == w })
}

func (m *model) check() {
	t := m.topic()
	if t == nil {
		require.Empty(m.t, m.queue, "waiters without a topic: %v", m.steps)
		require.Empty(m.t, m.apart, "they ask, and there is no topic: %v", m.steps)
		return
	}
	require.Len(m.t, m.apart, int(t.apart))
	var inQueue []*Waiter
	due, dueable, failed := 0, 0, 0
	for w := t.first; w != nil; w = w.next {
		inQueue = append(inQueue, w)
		if w.next == nil {
			require.Same(m.t, t.last, w)
		} else {
			require.Same(m.t, w, w.next.prev)
		}
		if w.due {
			due++
		}
		if w.due && w.err == nil {
			dueable++
		}
		if w.err != nil {
			failed++
		}
	}
	require.True(m.t, slices.Equal(m.queue, inQueue), "first in, first out: %v", m.steps)
	require.Len(m.t, m.placed, int(t.places))
	require.True(m.t, m.each || t.places <= 1, "one place: %v", m.steps)
	for _, w := range inQueue {
		require.Equal(m.t, m.placed[w], w.place != nil, "places, and their waiters are in the queue: %v", m.steps)
		asleep := w != t.current && !w.due && w.err == nil
		require.False(m.t, m.each && asleep && w.place == nil && t.need && t.live(), "asleep without a place: %v", m.steps)
	}
	require.Equal(m.t, due, int(t.due))

	if t.current != nil && m.turn == nil { // a turn began with this step
		m.clock++
		m.turn, m.joined, m.began, m.given = t.current, false, m.clock, 0
		require.Len(m.t, t.current.turn, 1, "a turn without a signal: %v", m.steps)
		<-t.current.turn
	}
	require.Equal(m.t, m.turn, t.current, "one turn at a time, and only the waiter ends it: %v", m.steps)
	for _, w := range m.queue {
		if w != t.current && w.err == nil {
			require.Empty(m.t, w.turn, "signalled without a turn: %v", m.steps)
		}
		if w.err != nil && w != t.current {
			require.Len(m.t, w.turn, 1, "not told of the error: %v", m.steps)
		}
	}

	if len(m.queue) == 0 {
		require.False(m.t, t.need, "an empty queue wants nothing: %v", m.steps)
		idle := !subOf(t).confirmed && !subOf(t).queued && subOf(t).op == noOp && t.apart == 0
		require.False(m.t, idle, "a topic that nobody needs: %v", m.steps)
		m.news, m.began = 0, 0
		return
	}
	if failed > 0 {
		return // they are told to leave, and hand on what there is
	}
	// A first turn may meet the subscription of a queue before, which is confirmed or given back
	// meanwhile. Its end tells whether that matters; if so a confirmation is still to come.
	first, anew := t.current != nil && !t.need, t.need && (!subOf(t).confirmed || subOf(t).op == unsubscribing)
	if m.news > m.began && !first && !anew {
		require.True(m.t, dueable > 0 || t.polite && !t.timerAt.IsZero(), "news is lost: %v", m.steps)
		if dueable == 0 {
			m.polite++
		}
	}
	if t.current == nil {
		require.Zero(m.t, dueable, "somebody is due and nobody has the turn: %v", m.steps)
		require.True(m.t, t.need, "asleep without a subscription: %v", m.steps)
		asked := subOf(t).queued || subOf(t).op != noOp || m.retry
		require.True(m.t, subOf(t).confirmed || asked, "asleep, and nobody subscribes: %v", m.steps)
	}
}

func TestNoWaiterSleepsThroughAnUnlock(t *testing.T) {
	t.Parallel()
	later := serverError(t, "TRYAGAIN later")
	rounds, waited, polite := 600, 0, 0
	if testing.Short() {
		rounds = 100
	}
	table := readStates(t)
	still(t, func(t *testing.T) {
		rare := func() bool {
			return waited == 0 || polite == 0 || slices.Contains(slices.Collect(maps.Values(table)), 0)
		}
		for round := 0; round < rounds || rare() && round < 30*rounds; round++ {
			seed := rand.Uint64()
			m := &model{desk: newDesk(t), rnd: rand.New(rand.NewPCG(seed, 0)), later: later, placed: make(map[*Waiter]bool)}
			m.hub.Aside = time.Hour
			m.each = round%3 == 0
			m.inLine = round%3 == 1
			m.states = states{now: make(map[*Waiter]string), table: table}
			m.shares, m.apart = !m.each && round%2 == 0, make(map[*Waiter]int)
			for range 150 {
				m.step()
			}
			m.drain()
			waited, polite = waited+m.waited, polite+m.polite
		}
	})
	require.Positive(t, waited, "nobody waited for a hold of this process")
	require.Positive(t, polite, "nobody let others go first")
	for row, taken := range table {
		require.Positive(t, taken, "in the table of queue.go, and never taken: %s", row)
	}
}

// drain lets everybody leave; then nothing is left.
func (m *model) drain() {
	if m.claimed {
		m.unclaim()
	}
	for len(m.queue) > 0 {
		w := m.queue[0]
		m.drop(w)
		w.Leave()
	}
	for w := range m.apart {
		w.Leave()
	}
	if m.pending != noOp {
		m.confirmation()
		require.False(m.t, m.finish(nil))
	}
	m.obey()
	require.Zero(m.t, m.hub.Len(), m.steps)
}
