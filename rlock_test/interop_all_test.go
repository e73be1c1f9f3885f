//go:build interop

package rlock_test

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// All beside getMultiLock and beside holders of single locks, in each setting.
func TestInteropAll(t *testing.T) {
	inEach(t, settings(t), func(t *testing.T, w *world) {
		t.Run("opposite orders", w.allInOppositeOrders)
		t.Run("wake-up", w.allWakesAndIsWoken)
	})
}

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
	alone(t)
	const long = 5 * time.Second
	names := []string{redistest.Name(t) + ":a", redistest.Name(t) + ":b"}
	both, one := filepath.Join(t.TempDir(), "both"), filepath.Join(t.TempDir(), "one")
	for _, file := range []string{both, one} {
		require.NoError(t, os.WriteFile(file, []byte("0"), 0o600))
	}
	add := func(file string) {
		n, err := readNumber(file)
		if assert.NoError(t, err) {
			assert.NoError(t, os.WriteFile(file, []byte(strconv.FormatInt(n+1, 10)), 0o600))
		}
	}
	var inJava [3]<-chan reply
	for i := range 2 {
		inJava[i] = w.java.send(t, "multi"+strconv.Itoa(i), "hammer", multi(names[1], names[0]), url.QueryEscape(both), ms(long))
	}
	inJava[2] = w.java.send(t, "single", "hammer", url.QueryEscape(names[1]), url.QueryEscape(one), ms(long))
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
					add(both)
					add(one) // the holder of both has each
					inGo.Add(1)
					return nil
				}))
			}
		})
	}
	wg.Wait()
	var counts [3]int64
	for i, ch := range inJava {
		r := w.java.await(t, ch)
		require.NoError(t, r.err)
		n, err := strconv.ParseInt(r.value, 10, 64)
		require.NoError(t, err)
		require.Positive(t, n)
		counts[i] = n
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
	var took []time.Duration
	for i := range 40 {
		for _, javaHolds := range []bool{true, false} {
			base := redistest.Name(t)
			names := []string{base + ":a", base + ":b", base + ":c"}
			java, held := w.java.thread(), multi(names[2], names[1], names[0])
			first := map[bool]string{true: names[0], false: names[2]}[javaHolds] // is waited for
			if i%2 == 1 {
				held, first = url.QueryEscape(names[1]), names[1]
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
				took = append(took, got.at.Sub(unlocked.began))
				require.NoError(t, got.unlock())
				continue
			}
			_, unlock, err := m.Lock(context.Background())
			require.NoError(t, err)
			in := w.java.send(t, java.name, "lock", held, ms(testTimeout))
			waits()
			began := time.Now()
			require.NoError(t, unlock())
			r := w.java.await(t, in)
			require.NoError(t, r.err)
			took = append(took, r.ended.Sub(began))
			java.ask(t, "unlock", held)
		}
	}
	slices.Sort(took)
	t.Logf("wake-up: median %v, max %v", took[len(took)/2], took[len(took)-1])
	require.LessOrEqual(t, took[len(took)/2], 20*time.Millisecond, "median")
	require.LessOrEqual(t, took[len(took)-1], late, "max")
}
