package ear

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/internal/testing/enginetest"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lease"
)

// startKeeping starts an engine with a live ear, and returns that with a lock that lingers.
func startKeeping(t testing.TB, kind *kinds.Kind, d time.Duration) (*Ear, *tenure.Lock) {
	t.Helper()
	e := New(enginetest.Start(t, redistest.Dial(t, redistest.Shared(t))), "")
	name := redistest.Name(t)
	once(t, keeping(e, name+":first", kinds.Mutex, time.Millisecond))
	redistest.Eventually(t, 10*time.Second, func() bool { return e.kept.ear.Load() != 0 }, "the ear listens")
	return e, keeping(e, name, kind, d)
}

// keeping is a handle with WithLinger.
func keeping(e *Ear, key string, kind *kinds.Kind, d time.Duration) *tenure.Lock {
	return e.NewLock(key, kind, key, tenure.Terms{Linger: d})
}

// once locks and unlocks, and returns the owner.
func once(t testing.TB, m *tenure.Lock) (owner string, token int64) {
	t.Helper()
	l, err := engine.Lock(m, tenure.CallerNow(context.Background()))
	require.NoError(t, err)
	owner = l.Hold.Tenure.Field()
	token, _ = m.Token(l)
	require.NoError(t, engine.Unlock(l))
	return owner, token
}

// untilKept locks and unlocks until the tenure is kept, and returns it: not while a slow machine has lost the ear's connection.
func untilKept(t testing.TB, e *Ear, m *tenure.Lock) (of *tenure.Tenure) {
	t.Helper()
	redistest.Eventually(t, 10*time.Second, func() bool {
		l, err := engine.Lock(m, tenure.CallerNow(context.Background()))
		require.NoError(t, err)
		of = l.Hold.Tenure
		require.NoError(t, engine.Unlock(l))
		return count(e) == 1
	}, "it is kept")
	return of
}

func isTaken(t testing.TB, m *tenure.Lock) bool {
	t.Helper()
	taken, err := m.IsLocked(context.Background())
	require.NoError(t, err)
	return taken
}

// count counts kept tenures. Unlike Stats, it includes a tenure before its first look.
func count(e *Ear) int {
	e.kept.mu.Lock()
	defer e.kept.mu.Unlock()
	return len(e.kept.of)
}

// Without competition, a kept lock is acquired again without Redis. It is released d after its last use.
func TestKeptTenureIsTakenAgain(t *testing.T) {
	t.Parallel()
	e, m := startKeeping(t, kinds.Mutex, 300*time.Millisecond)
	first, _ := once(t, m)
	for range 10 {
		again, _ := once(t, m)
		require.Equal(t, first, again)
	}
	require.Equal(t, uint64(10), e.Stats().Kept)
	require.Equal(t, 0, e.Stats().Holds)
	redistest.Eventually(t, 10*time.Second, func() bool { return !isTaken(t, m) }, "it ends")
	require.Equal(t, 0, e.Stats().Idle)
}

// G8: tokens rise over the holds of one tenure, and the next tenure's token is higher.
func TestTokensOfAKeptTenureRise(t *testing.T) {
	t.Parallel()
	e, m := startKeeping(t, kinds.Fenced, time.Minute)
	last := int64(0)
	for range 100 {
		_, token := once(t, m)
		require.True(t, token > last)
		last = token
	}
	require.Equal(t, uint64(99), e.Stats().Kept)
	e.FreeAll()
	other := e.NewLock(m.Key, kinds.Fenced, m.Name, tenure.Terms{})
	_, token := once(t, other)
	require.True(t, token > last)
}

// A kept tenure goes to any process that asks. If a section is running, it goes at the unlock.
func TestKeptTenureIsGivenUp(t *testing.T) {
	t.Parallel()
	e, m := startKeeping(t, kinds.Mutex, time.Minute)
	of := untilKept(t, e, m)
	e.keepNot(of.Tag)
	redistest.Eventually(t, 10*time.Second, func() bool { return !isTaken(t, m) }, "it is released")

	l, err := engine.Lock(m, tenure.CallerNow(context.Background()))
	require.NoError(t, err)
	e.keepNot(of.Tag) // again: it is remembered for a while only, and Lock has waited for Redis
	require.NoError(t, engine.Unlock(l))
	require.False(t, isTaken(t, m), "a lock that was just asked for is kept")
}

// A Lock by another handle uses that handle's options.
func TestKeptTenureAndOtherHandles(t *testing.T) {
	t.Parallel()
	e, m := startKeeping(t, kinds.Mutex, time.Minute)
	first, _ := once(t, m)
	plain := e.NewLock(m.Key, kinds.Mutex, m.Name, tenure.Terms{})
	again, _ := once(t, plain)
	require.Equal(t, first, again)
	require.False(t, isTaken(t, m), "the handle of the last hold does not linger")

	once(t, m)
	short := e.NewLock(m.Key, kinds.Mutex, m.Name, tenure.Terms{Lease: time.Second})
	who := tenure.CallerNow(context.Background()).UpTo(0, time.Second)
	l, err := engine.Lock(short, who)
	require.NoError(t, err)
	require.True(t, time.Until(e.Leases.Until(&l.Hold.Tenure.Lease)) <= time.Second)
	require.NoError(t, engine.Unlock(l))

	once(t, m)
	fair := e.NewLock(m.Key, kinds.Fair, m.Name, tenure.Terms{})
	l, err = engine.Lock(fair, who)
	require.NoError(t, err)
	require.NoError(t, engine.Unlock(l))
	require.Equal(t, 0, e.Stats().Holds)
}

// G1: among simultaneous Locks, the first gets the kept tenure and the rest follow in turn.
func TestKeptTenureExcludes(t *testing.T) {
	t.Parallel()
	e, m := startKeeping(t, kinds.Mutex, time.Minute)
	plain := e.NewLock(m.Key, kinds.Mutex, m.Name, tenure.Terms{})
	inside, n := 0, 0
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 200 {
				of := m
				if i%4 == 3 {
					of = plain
				}
				l, err := engine.Lock(of, tenure.CallerNow(context.Background()))
				if err != nil {
					t.Error(err)
					return
				}
				if inside++; inside != 1 {
					t.Error("two are inside")
				}
				n++
				inside--
				if err := engine.Unlock(l); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, 1600, n)
}

// A lost kept tenure is useless to the next Lock. No hold is notified, because none was open.
func TestKeptTenureIsLost(t *testing.T) {
	t.Parallel()
	e, m := startKeeping(t, kinds.Mutex, time.Minute)
	l, err := engine.Lock(m, tenure.CallerNow(context.Background()))
	require.NoError(t, err)
	first := l.Hold.Tenure
	require.NoError(t, engine.Unlock(l))
	tenure.Keeper{Tenure: first}.Lost(lease.Loss{Gone: true})
	require.Equal(t, 0, e.Stats().Idle)
	require.Equal(t, uint64(0), e.Stats().Lost)
	again, _ := once(t, m)
	require.True(t, again != first.Field())
}

// At most MaxKept tenures stay kept: the most recently used.
func TestKeptTenuresAreBounded(t *testing.T) {
	t.Parallel()
	e, m := startKeeping(t, kinds.Mutex, time.Minute)
	var all []*tenure.Lock
	for i := range MaxKept + 10 {
		x := keeping(e, m.Key+string(rune('a'+i)), kinds.Mutex, time.Minute)
		all = append(all, x)
		once(t, x)
	}
	require.Equal(t, MaxKept, count(e))
	for _, x := range all[:10] {
		redistest.Eventually(t, 10*time.Second, func() bool { return !isTaken(t, x) }, "it is released")
	}
	require.True(t, isTaken(t, all[10]))
}

// G5: Close and Shutdown leave nothing behind.
func TestKeptTenuresAndClose(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Ear){
		"Close": func(e *Ear) { e.Close() }, "Shutdown": func(e *Ear) { _ = e.Shutdown(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			e, m := startKeeping(t, kinds.Mutex, time.Minute)
			untilKept(t, e, m)
			end(e)
			other := enginetest.Start(t, redistest.Dial(t, redistest.Shared(t)))
			require.False(t, isTaken(t, other.NewLock(m.Key, kinds.Mutex, m.Name, tenure.Terms{})))
		})
	}
}

func BenchmarkKept(b *testing.B) {
	_, m := startKeeping(b, kinds.Mutex, time.Minute)
	b.ReportAllocs()
	for b.Loop() {
		l, err := engine.Lock(m, tenure.CallerNow(context.Background()))
		if err != nil {
			b.Fatal(err)
		}
		_ = engine.Unlock(l)
	}
}
