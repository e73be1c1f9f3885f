package pubsub

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/bubble"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// manualHub is a hub whose link is played by the test: it takes the commands and reports their outcome.
type manualHub struct {
	t    *testing.T
	hub  *Hub
	link *link
	ch   Channel
	each bool // each waiter has a place

	inLine bool // the process is to have a place

	shares bool // some want a share of the lock, and nobody hands it off
}

func newManualHub(t *testing.T) *manualHub {
	t.Helper()
	d := &manualHub{t: t, hub: New(nil, me), ch: Channel{Name: "c"}}
	d.link = &link{conns: d.hub.conns, work: make(chan struct{}, 1)}
	d.hub.conns.links[plainLink] = d.link
	t.Cleanup(d.hub.Close)
	return d
}

func (d *manualHub) q() Queue {
	return Queue{Channel: d.ch, Places: d.inLine, Each: d.each, Shared: d.shares}
}

func (d *manualHub) topic() *topic { return d.hub.topics[d.q()] }

// sub returns the subscription, or an idle one if there is none.
func (d *manualHub) sub() *subscription {
	if s := d.hub.conns.subs[d.ch]; s != nil {
		return s
	}
	return new(subscription)
}

// take returns the topic's next command, or noOp.
func (d *manualHub) take() op {
	if batch, _ := d.link.take(); len(batch) > 0 {
		return batch[0].op
	}
	return noOp
}

// confirm confirms a subscription on all its channels.
func (d *manualHub) confirm(kind string) {
	for _, name := range []string{d.ch.Name, d.ch.Name + line, d.ch.Name + d.hub.conns.grants} {
		d.confirmOne(kind, name)
	}
}

func (d *manualHub) confirmOne(kind, name string) {
	d.link.onSubscription(d.link.epoch, rueidis.PubSubSubscription{Kind: kind, Channel: name})
}

// finish ends the current command with the server's reply.
func (d *manualHub) finish(err error) (again bool) {
	return d.finishOf(d.sub(), err)
}

func (d *manualHub) finishOf(s *subscription, err error) (again bool) {
	d.hub.conns.mu.Lock()
	defer d.hub.conns.unlock()
	return d.link.finish(s, err)
}

// obey carries out the link's requests until none is left.
func (d *manualHub) obey() {
	d.lapse()
	for o := d.take(); o != noOp; o = d.take() {
		d.confirm(map[op]string{subscribing: "subscribe", unsubscribing: "unsubscribe"}[o])
		d.finish(nil)
	}
}

// empties carries out the link's requests; then nothing is left.
func (d *manualHub) empties() {
	d.t.Helper()
	d.obey()
	require.True(d.t, d.hub.isEmpty())
}

// unsubscribes requires that the link gives the last channel back.
func (d *manualHub) unsubscribes(why ...any) {
	d.t.Helper()
	require.Equal(d.t, unsubscribing, d.take(), why...)
	d.confirm("unsubscribe")
	require.False(d.t, d.finish(nil))
	require.True(d.t, d.hub.isEmpty())
}

// inBubble runs a parallel test in a bubble. If no time passes there, a subscription lingers until the test calls lapse, and no timer fires.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	bubble.Test(t, f)
}

// bubbles runs a subtest in a bubble for each row.
func bubbles[R any](t *testing.T, rows map[string]R, f func(t *testing.T, row R)) {
	t.Helper()
	t.Parallel()
	for name, row := range rows {
		t.Run(name, func(t *testing.T) { inBubble(t, func(t *testing.T) { f(t, row) }) })
	}
}

// serverError is an error reply of a real server; only the client can create such an error.
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

// model drives a hub at random and knows the states that must never occur.
//
// An event is anything that may be news about the lock: a message, a confirmation, the end of the time, or a wake-up passed on by a waiter.
// A turn that begins later answers it. The invariant I-wake: while news has no answer, a waiter is due; without news, the subscription is
// live or requested. A waiter that joins an empty queue has a turn at once, with an exception: the last attempt got the lock, no news of
// its end has come, and none could have been missed.
type model struct {
	*manualHub
	rnd      *rand.Rand
	queue    []*Waiter // in the order of joining
	turn     *Waiter   // whose turn began last, if it has not ended
	joined   bool      // it began with Join, so nothing was signalled
	claimed  bool      // it is a claim, not a turn
	gave     bool      // the claimed one gave up
	clock    int
	news     int // when the last event was
	began    int // when the last turn began
	claimAt  int // when the last claim did
	local    int // when the attempt began that got the lock for this process, which still has it; 0: none
	ended    int // when the last message came, which may be about the end of that hold
	stood    int // when the subscription was last confirmed
	waited   int // how many joined an empty queue and got no turn
	polite   int // how many courtesies there were
	lateNews int // how often a queue heard late of its subscription
	yielded  int // how many joined an empty queue and let others ask first
	placed   map[*Waiter]bool
	given    int             // when the one with the turn was given the lock; 0: it was not
	unheard  int             // when the last '00' came, which was not for the one with the place
	apart    map[*Waiter]int // those that ask beside the queue, and when they began to
	heard    int             // when a message or a confirmation last came, also while the queue was empty
	retry    bool
	later    error // a server's answer: not now
	pending  op    // taken from the link, not finished
	late     *late // the queue has yet to hear that the subscription is live
	steps    []string
	states   states
}

// states holds the states of all waiters in the model, and the table of waiter.go with the rows taken.
type states struct {
	now   map[*Waiter]string
	table map[string]int // "event from to": how often the model has taken it
}

// stateOf derives the state of a waiter, named as in waiter.go.
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
	case w.stopped:
		return "stopped"
	case w.prev == nil && w.topic.first != w:
		return "out"
	case w.isDue():
		return "due"
	}
	return "waiting"
}

// readStates parses the table in waiter.go.
func readStates(t *testing.T) map[string]int {
	t.Helper()
	text, err := os.ReadFile("waiter.go")
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

// moved checks the new states of all waiters against the table. event is the call made for w.
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
		require.True(m.t, known || event == "Unanswered" && x == w, "not in the table of waiter.go: %s, %v", row, m.steps)
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

// step makes a random step; steps listed several times are more frequent.
func (m *model) step() {
	steps := [20]func(){
		m.joins, m.joins, m.joinsFirst, m.refusedInTurn, m.refusedInTurn, m.doneInTurn, m.leavesInTurn, m.leavesTheQueue, m.messageComes,
		m.answerComes, m.commandEnds, m.commandEnds, m.connectionFails, m.timePasses,
		m.claims, m.claims, m.places, m.places, m.grants, m.grants,
	}
	n := m.rnd.IntN(len(steps))
	if m.local > 0 && len(m.queue) == 0 && m.rnd.IntN(2) == 0 {
		n = 0 // rare, and of interest
	}
	steps[n]()
	m.moved("", nil)
	m.check()
	if m.rnd.IntN(4) == 0 {
		m.hearsOfIt()
	}
}

func (m *model) note(s string) { m.steps = append(m.steps, s) }

// got is for an attempt that got the lock; it returns for how long.
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

// live returns those in the queue that were not stopped.
func (m *model) live() []*Waiter {
	return slices.DeleteFunc(slices.Clone(m.queue), func(w *Waiter) bool { return w.stopped })
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
		if w.isDue() {
			due++
		}
		if w.isDue() && w.err == nil {
			dueable++
		}
		if w.err != nil {
			failed++
		}
	}
	require.True(m.t, slices.Equal(m.live(), inQueue), "first in, first out: %v", m.steps)
	var barrier *Waiter
	if i := slices.IndexFunc(inQueue, func(w *Waiter) bool { return !w.Shared && w.err == nil }); i >= 0 {
		barrier = inQueue[i]
	}
	require.True(m.t, barrier == t.barrier, "%v", m.steps)
	all, exclusive, waiting := 0, 0, 0
	for _, w := range inQueue {
		if w.turn != nil {
			if all++; !w.Shared {
				exclusive++
			}
			if w != t.current {
				waiting++
			}
		}
	}
	gotAll, gotExclusive := m.hub.Queued(m.q())
	require.Equal(m.t, []int{all, exclusive, waiting}, []int{gotAll, gotExclusive, m.hub.Waiting()}, "%v", m.steps)
	require.Equal(m.t, len(m.queue)-len(inQueue), int(t.stopped))
	require.Len(m.t, m.placed, len(t.places))
	require.True(m.t, m.each || len(t.places) <= 1, "one place: %v", m.steps)
	for _, w := range m.queue {
		require.Equal(m.t, m.placed[w], w.place != nil, "places, and their waiters are in the queue: %v", m.steps)
		asleep := w != t.current && !w.isDue() && w.err == nil
		require.False(m.t, m.each && asleep && w.place == nil && t.need && t.isLive() && m.late == nil, "asleep without a place: %v", m.steps)
	}
	require.Equal(m.t, due, len(t.dues))

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
			require.Len(m.t, w.turn, 1, "no signal of the error: %v", m.steps)
		}
	}

	if len(m.queue) == 0 {
		require.False(m.t, t.need, "an empty queue wants nothing: %v", m.steps)
		require.True(m.t, m.sub().confirmed || t.apart > 0, "an unused topic: %v", m.steps)
		m.news, m.began = 0, 0
		return
	}
	if len(inQueue) == 0 { // who joins now, asks
		m.news, m.began = 0, 0
		return
	}
	if failed > 0 {
		return // the one with the turn or a claim is to leave, and hands on its wake-up
	}
	// A first turn may meet the subscription of an earlier queue, which is confirmed or given back meanwhile. The turn's end shows whether
	// that matters. If so, a confirmation is still to come.
	first, anew := t.current != nil && !t.need, t.need && (!m.sub().confirmed || m.sub().op == unsubscribing || m.late != nil)
	if m.news > m.began && !first && !anew {
		require.True(m.t, dueable > 0 || t.polite && !t.timerAt.IsZero(), "news is lost: %v", m.steps)
		if dueable == 0 {
			m.polite++
		}
	}
	yields := !t.need && t.polite && !t.timerAt.IsZero() // nobody has asked yet
	if t.current == nil {
		require.Zero(m.t, dueable, "a waiter is due but none has the turn: %v", m.steps)
	}
	if t.current == nil && !yields {
		require.True(m.t, t.need, "asleep without a subscription: %v", m.steps)
		asked := m.sub().queued || m.sub().op != noOp || m.retry
		require.True(m.t, m.sub().confirmed || asked, "asleep without a subscription: %v", m.steps)
	}
}

// HUB_SEED repeats the round of a seed that a failure has named.
func TestNoWaiterSleepsThroughAnUnlock(t *testing.T) {
	t.Parallel()
	later := serverError(t, "TRYAGAIN later")
	table := readStates(t)
	if s := os.Getenv("HUB_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		bubble.Test(t, func(t *testing.T) { modelRound(t, seed, table, later) })
		return
	}
	rounds, waited, polite, yielded, late := 300, 0, 0, 0, 0
	if testing.Short() {
		rounds = 100
	}
	bubble.Test(t, func(t *testing.T) {
		rare := func() bool {
			return waited == 0 || polite == 0 || yielded == 0 || late == 0 || slices.Contains(slices.Collect(maps.Values(table)), 0)
		}
		for round := 0; round < rounds || rare() && round < 30*rounds; round++ {
			m := modelRound(t, rand.Uint64(), table, later)
			waited, polite, yielded, late = waited+m.waited, polite+m.polite, yielded+m.yielded, late+m.lateNews
		}
	})
	require.Positive(t, waited, "no waiter waited for a hold of this process")
	require.Positive(t, polite, "no waiter let others go first")
	require.Positive(t, late, "no queue heard late that its subscription is live")
	require.Positive(t, yielded, "no waiter let others go first in an empty queue")
	for row, taken := range table {
		require.Positive(t, taken, "in the table of waiter.go, and never taken: %s", row)
	}
}

// modelRound makes 150 steps that are computed from the seed.
func modelRound(t *testing.T, seed uint64, table map[string]int, later error) *model {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 0))
	m := &model{manualHub: newManualHub(t), rnd: rnd, later: later, placed: make(map[*Waiter]bool)}
	m.hub.Aside = time.Hour
	mode := rnd.IntN(3)
	m.each, m.inLine = mode == 0, mode == 1
	m.states = states{now: make(map[*Waiter]string), table: table}
	m.shares, m.apart = !m.each && rnd.IntN(2) == 0, make(map[*Waiter]int)
	passed := false
	defer func() {
		if !passed {
			t.Logf("HUB_SEED=%d", seed)
		}
	}()
	for range 150 {
		m.step()
	}
	m.drain()
	passed = true
	return m
}

// drain lets all waiters leave; then nothing is left.
func (m *model) drain() {
	m.hearsOfIt()
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
	require.True(m.t, m.hub.isEmpty(), m.steps)
}
