package counter

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/internal/testing/bubble"
	"github.com/go-rlock/rlock/internal/testing/enginetest"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// The first call is made outside the hub. If it is refused, the combiner asks again once the process listens: an earlier message had no receiver.
func TestCombinerAsksAgainInTheHub(t *testing.T) {
	c := enginetest.Start(t, redistest.Dial(t, redistest.Shared(t)))
	name := redistest.Name(t)
	m := New(c).Get(name, kinds.Semaphore, name, tenure.Terms{})
	b := &combiner{m: m, more: make(chan struct{}, 1)}
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	b.add(context.Background(), lua.Add, 1)
	require.True(t, b.asks() && !b.waits())
	w := &counterWaiter{n: 5, ctx: context.Background(), refused: make(chan struct{}), ended: make(chan struct{})}
	b.waiters, b.live = []*counterWaiter{w}, 1 // it arrives after that decision
	b.call()
	require.True(t, len(b.changes) == 0 && b.waiters[0].seen, "both were in the call")
	require.True(t, b.waits() && !b.asks())
	for !b.joined || b.turn {
		require.True(t, b.step())
	}
	_, err := m.last(lua.Add, 4) // another call: nobody is told, because nobody is in line
	require.NoError(t, err)
	for !w.gone {
		b.step()
	}
	require.NoError(t, w.err)
	for b.step() {
	}
}

// A process that may not hear of grants may hear of releases already when it joins the hub. What it heard after its first call found nobody there,
// so it asks again.
func TestCombinerAsksAgainWhereItHears(t *testing.T) {
	s, name := redistest.Start(t), redistest.Name(t)
	rdb, channel := s.Client(t), kinds.Semaphore.Channel(name)
	acl := rdb.B().AclSetuser().Username("app").Rule("on", ">secret", "~*", "+@all", "resetchannels", "&"+channel).Build()
	require.NoError(t, rdb.Do(t.Context(), acl).Error())
	c := enginetest.Start(t, s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "app", "secret" }))
	m := New(c).Get(name, kinds.Semaphore, name, tenure.Terms{})

	subscribed := func(q pubsub.Queue) *pubsub.Waiter {
		w := new(pubsub.Waiter)
		require.True(t, c.Hub.Join(w, q))
		w.Held(time.Hour, false)
		<-w.Turn()
		return w
	}
	before, beside := subscribed(m.Waiters()), subscribed(pubsub.Queue{Lock: "beside", Channel: m.Waiters().Channel})
	before.Leave() // the other one keeps the subscription
	beside.Held(time.Hour, false)

	b := &combiner{m: m, more: make(chan struct{}, 1)}
	w := &counterWaiter{n: 5, ctx: context.Background(), refused: make(chan struct{}), ended: make(chan struct{})}
	b.waiters, b.live = []*counterWaiter{w}, 1
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	b.call()
	require.True(t, w.seen)
	_, err := New(enginetest.Start(t, rdb)).Get(name, kinds.Semaphore, name, tenure.Terms{}).Change(t.Context(), lua.Add, 5)
	require.NoError(t, err)
	<-beside.Turn() // the message is there
	for !w.gone {
		require.True(t, !b.joined || b.turn || b.asks(), "it sleeps")
		b.step()
	}
	require.NoError(t, w.err)
	for b.step() {
	}
	beside.Leave()
}

// A CountDown that comes when a look is about to be made is a call of its own: its answer says nothing of the latch to those who wait.
func TestLatchIsLookedAtByItself(t *testing.T) {
	c := enginetest.Start(t, redistest.Dial(t, redistest.Shared(t)))
	name := redistest.Name(t)
	m := New(c).Get(name, kinds.Latch, name, tenure.Terms{})
	_, err := m.Change(context.Background(), SetCount, 2)
	require.NoError(t, err)
	looks := &combiner{m: m, combinerKey: combinerKey{m.Kind, m.Key, true}, more: make(chan struct{}, 1)}
	changes := &combiner{m: m, combinerKey: combinerKey{m.Kind, m.Key, false}, more: make(chan struct{}, 1)}
	m.of.combiners[looks.combinerKey], m.of.combiners[changes.combinerKey] = looks, changes
	w := &counterWaiter{ctx: context.Background(), refused: make(chan struct{}), ended: make(chan struct{})}
	require.NoError(t, m.come(w, false))
	require.True(t, looks.asks() && !looks.waits())
	leaves, leave := context.WithCancel(context.Background())
	leave()
	_, left := m.make(leaves, false, false, CountDown, 1)
	require.True(t, left)
	m.of.mu.Lock()
	looks.call()
	m.of.mu.Unlock()
	require.True(t, w.seen && !w.gone && w.count == 2)
	changes.run()
	require.True(t, !w.gone)
	n, err := m.Count(context.Background())
	require.True(t, n == 1 && err == nil)
	w.leave()
	require.Equal(t, errInVain, w.err)
	looks.run()
}

// Calls left over from an outage have already failed for their callers. A later Release gets the result of its own call.
func TestCountersAfterAnOutage(t *testing.T) {
	c := enginetest.Start(t, redistest.Dial(t, redistest.Shared(t)))
	name := redistest.Name(t)
	b := &combiner{m: New(c).Get(name, kinds.Semaphore, name, tenure.Terms{}), more: make(chan struct{}, 1)}
	told, drain := b.add(context.Background(), lua.Add, 1), b.add(context.Background(), lua.Drain, 0)
	w := &counterWaiter{n: 5, refused: make(chan struct{}), ended: make(chan struct{})}
	b.waiters, b.live = []*counterWaiter{w}, 1
	b.last = request{ran: true, waiters: b.waiters}
	b.fail(calls.ErrNoAnswer)
	require.True(t, b.failing != nil && w.gone)
	require.True(t, told.over && told.pending && drain.over && !drain.pending)
	require.Equal(t, 1, len(b.changes))
	left := b.changes[0]
	require.True(t, b.add(context.Background(), lua.Add, 1) == left && left.n == 2 && !left.over && left.goesOn)
}

// The scripts set a record's expiry anew after each second, which they see by the numbers: also after a second with very many requests, and
// while others are numbered. A request counts as sent when it has its number: one that was held up after that must not be repeated too late.
func TestRequestsAreNumberedByTime(t *testing.T) {
	c := enginetest.Start(t, redistest.Dial(t, redistest.Shared(t)))
	bubble.Test(t, func(t *testing.T) {
		all := New(c)
		m := all.Get("numbered", kinds.Semaphore, "numbered", tenure.Terms{})
		last := int64(0)
		for second := range int64(5) {
			for range 5000 {
				number := m.args().Request
				require.Greater(t, number, last)
				last = number
			}
			require.Equal(t, second, last/1_000_000)
			<-time.After(time.Second)
		}
		b := &combiner{m: m}
		b.next()
		require.Equal(t, time.Now(), b.last.sent)
	})
}
