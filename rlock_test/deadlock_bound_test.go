package rlock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/pubsub"
	"github.com/go-rlock/rlock/rlock"
)

// A deadlock of n processes that listen already is found two laps after After: 2n ways, from a process over Redis to the next one. What the waits on the way
// ask Redis does not delay that: each takes as long as a way, and there would be n more.
func TestDeadlockWithin(t *testing.T) {
	redistest.Parallel(t)
	const n, after, way = 5, time.Second, 500 * time.Millisecond
	const slow = 4 * way // what a busy machine may add, or rueidis, which now and then has a command wait for the one before
	w := newWaits()
	o := failAfter(after)
	o.Trace = w.trace()
	b := newBareFixture(t)
	clients, proxies, parties := make([]*rlock.Client, n), make([]*redistest.Proxy, n), make([]party, n)
	for i := range parties {
		proxies[i] = redistest.StartProxy(t, redistest.Shared(t))
		clients[i] = newClient(t, deadlock.Apart{Client: redistest.Dial(t, proxies[i].Addr()), Graph: deadlock.New()}, o)
		parties[i] = party{clients[i].Mutex(fmt.Sprint(b.name, "/", i)), clients[i].Mutex(fmt.Sprint(b.name, "/", (i+1)%n))}
	}
	delay := func(d time.Duration) {
		for _, p := range proxies {
			p.Delay(d)
		}
	}
	victim := &timed{Locker: parties[n-1].wants, ended: func() { delay(0) }}
	parties[n-1].wants = victim
	errs := circle(t, parties, func(i int) {
		w.next(t)
		switch i {
		case n - 2: // the last begins when they listen
			for _, c := range clients[:n-1] {
				listens(t, b, c)
			}
		case n - 1:
			delay(way / 2)
		}
	})
	e := victimOf(t, errs)
	require.Len(t, e.Cycle, n)
	took := victim.at.Sub(e.Cycle[0].WaitingSince.Add(after))
	t.Logf("%.1f ways", took.Seconds()/way.Seconds())
	require.Greater(t, took, 2*n*way-slow, "or a way is none")
	require.Less(t, took, 2*n*way+slow)
}

// A writer waits for many readers, one of which waits for the writer's own lock. The writer learns of the readers from Redis, asks all of
// them at once, and finds the circle two laps after that.
func TestDeadlockOfManyReadersWithin(t *testing.T) {
	redistest.Parallel(t)
	const n, after, way = 12, time.Second, 500 * time.Millisecond
	const ways, slow = 1 + 4, 4 * way
	w := newWaits()
	o := failAfter(after)
	o.Trace = w.trace()
	b := newBareFixture(t)
	proxies := []*redistest.Proxy{redistest.StartProxy(t, redistest.Shared(t)), redistest.StartProxy(t, redistest.Shared(t))}
	writer := elsewhere(t, redistest.Dial(t, proxies[0].Addr()), o)
	reader := elsewhere(t, redistest.Dial(t, proxies[1].Addr()), o)
	var leave []rlock.UnlockFunc
	for range n { // who do nothing but read
		_, unlock, err := elsewhere(t, b.rdb, o).RWMutex(b.name).Read().Lock(t.Context())
		require.NoError(t, err)
		leave = append(leave, unlock)
	}
	victim := &timed{Locker: writer.RWMutex(b.name).Write(), ended: func() {
		for _, p := range proxies {
			p.Delay(0)
		}
	}}
	errs := circle(t, []party{
		{reader.RWMutex(b.name).Read(), reader.Mutex(b.name + "/m")}, {writer.Mutex(b.name + "/m"), victim},
	}, func(i int) {
		w.next(t)
		if i == 0 {
			listens(t, b, reader)
			return
		}
		for _, p := range proxies {
			p.Delay(way / 2)
		}
	})
	for _, unlock := range leave {
		require.NoError(t, unlock())
	}
	e := victimOf(t, errs)
	took := victim.at.Sub(e.Cycle[0].WaitingSince.Add(after))
	t.Logf("%.1f ways", took.Seconds()/way.Seconds())
	require.Less(t, took, ways*way+slow)
}

// listens waits until a Client can be spoken to.
func listens(t *testing.T, b fixture, c *rlock.Client) {
	t.Helper()
	ear := pubsub.EarChannel(c.ID())
	redistest.Eventually(t, testTimeout, func() bool {
		listen, err := b.rdb.Do(t.Context(), b.rdb.B().PubsubNumsub().Channel(ear).Build()).AsIntMap()
		return err == nil && listen[ear] == 1
	}, "it listens")
}

// timed is a lock whose Lock notes when it returned.
type timed struct {
	rlock.Locker

	at    time.Time
	ended func()
}

func (l *timed) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	inner, unlock, err := l.Locker.Lock(ctx)
	l.at = time.Now()
	l.ended()
	return inner, unlock, err
}
