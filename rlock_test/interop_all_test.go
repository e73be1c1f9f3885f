//go:build interop

package rlock_test

import (
	"context"
	"errors"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// multi is the name of a MultiLock.
func multi(names ...string) string {
	word := "multi/"
	for i, name := range names {
		if i > 0 {
			word += ","
		}
		word += url.QueryEscape(name)
	}
	return word
}

// Goroutines that take All of two locks, and threads that take a MultiLock of them in the opposite order, exclude each other, and
// holders of one of them. Both sides get in all the time.
func (w *world) allInOppositeOrders(t *testing.T) {
	const long = 5 * time.Second
	names := []string{redistest.Name(t) + ":a", redistest.Name(t) + ":b"}
	both, one := numberFile(t), numberFile(t)
	var inJava []<-chan reply
	for _, job := range [][2]string{{multi(names[1], names[0]), both}, {multi(names[1], names[0]), both}, {wordOf("", names[1]), one}} {
		inJava = append(inJava, w.java.thread().send(t, "hammer", job[0], url.QueryEscape(job[1]), ms(long)))
	}
	m := rlock.All(w.watch.Mutex(names[0]), w.watch.Mutex(names[1]))
	var inGo, longest atomic.Int64
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	for end, g := time.Now().Add(long), 0; g < 2; g++ {
		wg.Go(func() {
			for time.Now().Before(end) {
				began := time.Now()
				assert.NoError(t, m.Do(ctx, func(context.Context) error {
					longest.Store(max(longest.Load(), int64(time.Since(began))))
					inGo.Add(1)
					return errors.Join(addOne(both), addOne(one)) // the holder of both has each
				}))
			}
		})
	}
	wg.Wait()
	var counts [3]int64
	for i := range counts {
		counts[i] = w.java.sum(t, inJava[i:i+1])
		require.Positive(t, counts[i])
	}
	n, err := readNumber(both)
	require.NoError(t, err)
	require.Equal(t, inGo.Load()+counts[0]+counts[1], n, "an addition was lost")
	n, err = readNumber(one)
	require.NoError(t, err)
	require.Equal(t, inGo.Load()+counts[2], n, "an addition was lost")
	t.Logf("%d sections in Go, the longest wait was %v; %v in Java: two of both locks, and one of one", inGo.Load(), time.Duration(longest.Load()), counts)
}

// A MultiLock wakes All and the other way round, and so does the holder of one lock.
func (w *world) allWakesAndIsWoken(t *testing.T) {
	alone(t)
	var all wakeUps
	for i := range 80 {
		base, javaHolds := redistest.Name(t), i%2 == 0
		names := []string{base + ":a", base + ":b", base + ":c"}
		java, held := w.java.thread(), multi(names[2], names[1], names[0])
		first := map[bool]string{true: names[0], false: names[2]}[javaHolds] // is waited for
		if i%4 > 1 {
			held, first = wordOf("", names[1]), names[1]
		}
		waits := func() {
			redistest.Eventually(t, 10*time.Second, func() bool { return w.subscribers(t, first) > 0 }, "it waits")
		}
		m := rlock.All(w.watch.Mutex(names[0]), w.watch.Mutex(names[1]), w.watch.Mutex(names[2]))
		if javaHolds {
			java.ask(t, "lock", held, ms(testTimeout))
			p := lockAsync(t, m)
			waits()
			unlocked := java.do(t, "unlock", held)
			require.NoError(t, unlocked.err)
			got := p.get(t, 5*time.Second)
			require.NoError(t, got.err)
			all.add(unlocked.event, event{ended: got.at}, unlocked.event)
			require.NoError(t, got.unlock())
			continue
		}
		_, unlock := enter(t, context.Background(), m)
		in := java.startOp(t, "lock", held, ms(testTimeout))
		waits()
		began := time.Now()
		require.NoError(t, unlock())
		unlocked := event{began: began, ended: time.Now()}
		all.add(unlocked, await(t, in, 5*time.Second), unlocked)
		java.ask(t, "unlock", held)
	}
	all.requirePrompt(t, 0)
}
