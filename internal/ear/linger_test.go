package ear

import (
	"context"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/internal/testing/enginetest"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
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
func once(t testing.TB, m *tenure.Lock) (owner string) {
	t.Helper()
	l, err := engine.Lock(m, tenure.CallerNow(context.Background()))
	require.NoError(t, err)
	owner = l.Hold.Tenure.Field()
	require.NoError(t, engine.Unlock(l))
	return owner
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

// G9: Close waits for the release of a kept tenure that somebody has just taken out of the list.
func TestCloseWaitsForATenureThatWasTakenOut(t *testing.T) {
	t.Parallel()
	e, m := startKeeping(t, kinds.Mutex, time.Minute)
	once(t, m)
	x := e.kept.take(e, m.Key)
	closed := make(chan struct{})
	go func() { // ends with the test
		e.Close()
		close(closed)
	}()
	<-e.Calls.Done()
	select {
	case <-closed:
		t.Fatal("it is closed")
	case <-time.After(100 * time.Millisecond): // in which it would be
	}
	e.end(x)
	<-closed
	n, err := e.RDB.Do(context.Background(), e.RDB.B().Exists().Key(m.Key).Build()).AsInt64()
	require.NoError(t, err)
	require.Equal(t, int64(0), n)
}

// G9: an unlock at the very moment of Close keeps nothing that nobody would release, and leaves no timer.
func TestNothingIsKeptAfterClose(t *testing.T) {
	t.Parallel()
	e, m := startKeeping(t, kinds.Mutex, time.Hour)
	l, err := engine.Lock(m, tenure.CallerNow(context.Background()))
	require.NoError(t, err)
	e.Close()
	_, kept := e.kept.add(e, stateOf(l.Hold.Tenure), m.Linger)
	require.False(t, kept)
	require.True(t, e.kept.timerAt.IsZero())
	require.NoError(t, engine.Unlock(l))
}

// A Lock by another handle uses that handle's options.
func TestKeptTenureAndOtherHandles(t *testing.T) {
	t.Parallel()
	e, m := startKeeping(t, kinds.Mutex, time.Minute)
	first := once(t, m)
	plain := e.NewLock(m.Key, kinds.Mutex, m.Name, tenure.Terms{})
	again := once(t, plain)
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
