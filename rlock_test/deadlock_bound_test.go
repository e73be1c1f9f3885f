package rlock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// A deadlock of n processes that already listen is found two laps of the probe after After. That is 2n trips, each from one process
// over Redis to the next. The queries that each process sends meanwhile take as long as a trip, but run beside it and add no delay.
func TestDeadlockWithin(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const n, after, way = 5, time.Second, 500 * time.Millisecond
		w := newWaits()
		o := w.failAfter(after)
		b := newBareFixture(t)
		clients, proxies, parties := make([]*rlock.Client, n), make([]*redistest.Proxy, n), make([]party, n)
		for i := range parties {
			proxies[i] = redistest.StartProxy(t, redistest.Shared(t))
			clients[i] = newClient(t, deadlock.Apart{Client: redistest.Dial(t, proxies[i].Addr(), pipelined), Graph: deadlock.New()}, o)
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
			case n - 2: // the last one starts once the others listen
				b.earsOf(t, clients[:n-1]...)
			case n - 1:
				delay(way / 2)
			}
		})
		e := victimOf(t, errs)
		require.Len(t, e.Cycle, n)
		requireTook(t, 2*n*way, e.Cycle[0].WaitingSince.Add(after), victim.at)
	})
}

// A writer asks all readers at once, one of which closes the circle. It needs one query to Redis to learn of the readers, and finds
// the deadlock two laps later.
func TestDeadlockOfManyReadersWithin(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const n, after, way = 12, time.Second, 500 * time.Millisecond
		const ways, slow = 1 + 4, 4 * way
		w := newWaits()
		o := w.failAfter(after)
		b := newBareFixture(t)
		proxies := []*redistest.Proxy{redistest.StartProxy(t, redistest.Shared(t)), redistest.StartProxy(t, redistest.Shared(t))}
		writer := elsewhere(t, redistest.Dial(t, proxies[0].Addr(), pipelined), o)
		reader := elsewhere(t, redistest.Dial(t, proxies[1].Addr(), pipelined), o)
		var others []lockResult // that wait for nothing
		for range n {
			others = append(others, locked(t, elsewhere(t, b.rdb, o).RWMutex(b.name).Read()))
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
				b.earsOf(t, reader)
				return
			}
			for _, p := range proxies {
				p.Delay(way / 2)
			}
		})
		for _, r := range others {
			require.NoError(t, r.unlock())
		}
		e := victimOf(t, errs)
		took := victim.at.Sub(e.Cycle[0].WaitingSince.Add(after))
		t.Logf("%.1f trips", took.Seconds()/way.Seconds())
		require.Less(t, took, ways*way+slow)
	})
}

// timed is a lock that records when its Lock returned.
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
