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
	b := bareBench(t)
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
				ear := pubsub.EarChannel(c.ID())
				redistest.Eventually(t, atMost, func() bool {
					listen, err := b.rdb.Do(t.Context(), b.rdb.B().PubsubNumsub().Channel(ear).Build()).AsIntMap()
					return err == nil && listen[ear] == 1
				}, "it listens")
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
