package counter

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
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
	m := New(c).Semaphore(name, name, tenure.Terms{})
	b := &combiner{m: m.Counter, more: make(chan struct{}, 1)}
	b.add(context.Background(), lua.Add, 1)
	require.Equal(t, wants{ask: true}, b.wants())
	w := &counterWaiter{n: 5, ctx: context.Background(), refused: make(chan struct{}), ended: make(chan struct{}), listed: true}
	b.waiters, b.live = []*counterWaiter{w}, 1 // it arrives after that decision
	b.call()
	require.True(t, len(b.changes) == 0 && b.waiters[0].seen, "both were in the call")
	require.Equal(t, wants{wait: true}, b.wants())
	for !b.joined || b.turn {
		require.Equal(t, combinerWorks, b.step())
	}
	_, _, err := m.last(lua.Add, 4) // another call: nobody is told, because nobody is in line
	require.NoError(t, err)
	for w.err == nil && !w.gone {
		if b.step() == combinerSleeps {
			b.await(b.more)
		}
	}
	require.NoError(t, w.err)
	b.leaveLine()
}

// A process that may not hear of grants may hear of releases already when it joins the hub. What it heard after its first call found nobody there,
// so it asks again.
func TestCombinerAsksAgainWhereItHears(t *testing.T) {
	s, name := redistest.Start(t), redistest.Name(t)
	rdb, channel := s.Client(t), kinds.Semaphore.Channel(name)
	acl := rdb.B().AclSetuser().Username("app").Rule("on", ">secret", "~*", "+@all", "resetchannels", "&"+channel).Build()
	require.NoError(t, rdb.Do(t.Context(), acl).Error())
	c := enginetest.Start(t, s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "app", "secret" }))
	m := New(c).Semaphore(name, name, tenure.Terms{})

	subscribed := func(q pubsub.Queue) *pubsub.Waiter {
		w := new(pubsub.Waiter)
		require.True(t, c.Hub.Join(w, q))
		w.Held(time.Hour, false)
		<-w.Turn()
		return w
	}
	before, beside := subscribed(m.queueInHub()), subscribed(pubsub.Queue{Lock: "beside", Channel: m.queueInHub().Channel})
	before.Leave() // the other one keeps the subscription
	beside.Held(time.Hour, false)

	b := &combiner{m: m.Counter, more: make(chan struct{}, 1)}
	w := &counterWaiter{n: 5, ctx: context.Background(), refused: make(chan struct{}), ended: make(chan struct{}), listed: true}
	b.waiters, b.live = []*counterWaiter{w}, 1
	b.call()
	require.True(t, w.seen)
	_, err := New(enginetest.Start(t, rdb)).Semaphore(name, name, tenure.Terms{}).Change(t.Context(), lua.Add, 5)
	require.NoError(t, err)
	<-beside.Turn() // the message is there
	for i := 0; !w.gone; i++ {
		require.True(t, b.step() == combinerWorks && i < 100, "it sleeps")
	}
	require.NoError(t, w.err)
	b.leaveLine()
	beside.Leave()
}

// A CountDown that comes when a look is about to be made is a call of its own: its answer says nothing of the latch to those who wait.
func TestLatchIsLookedAtByItself(t *testing.T) {
	c := enginetest.Start(t, redistest.Dial(t, redistest.Shared(t)))
	name := redistest.Name(t)
	m := New(c).Latch(name, name, tenure.Terms{})
	_, err := m.TrySetCount(context.Background(), 2)
	require.NoError(t, err)
	b := &combiner{m: m.Counter, more: make(chan struct{}, 1)}
	w := &counterWaiter{ctx: context.Background(), refused: make(chan struct{}), ended: make(chan struct{}), listed: true}
	b.waiters, b.live = []*counterWaiter{w}, 1
	require.Equal(t, wants{ask: true}, b.wants())
	b.add(context.Background(), countDown, 1)
	b.call()
	require.True(t, len(b.changes) == 1 && w.seen && !w.gone)
}

// Calls left over from an outage have already failed for their callers. A later Release gets the result of its own call.
func TestCountersAfterAnOutage(t *testing.T) {
	failed := errors.New("no answer")
	b := &combiner{more: make(chan struct{}, 1), failing: failed}
	left := b.add(context.Background(), lua.Add, 1)
	left.end(0, failed, false)
	require.True(t, b.add(context.Background(), lua.Add, 1) == left && left.n == 2, "during the outage")
	b.failing = nil
	next := b.add(context.Background(), lua.Add, 1)
	require.True(t, next != left && !next.over)
}
