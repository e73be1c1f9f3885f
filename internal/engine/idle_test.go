package engine

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
)

// startKeeping starts an engine with a live ear, and returns it with a lock that lingers.
func startKeeping(t testing.TB, kind *kinds.Kind, d time.Duration) (*Engine, *Spec) {
	t.Helper()
	c := startEngine(t, redistest.Dial(t, redistest.Shared(t)), silent{})
	name := redistest.Name(t)
	first := c.NewSpec(name+":first", kinds.Mutex, name)
	first.Linger = time.Millisecond
	once(t, first)
	redistest.Eventually(t, 10*time.Second, func() bool { return c.idle.ear.Load() != 0 }, "the ear listens")
	m := c.NewSpec(name, kind, name)
	m.Linger = d
	return c, m
}

// once locks and unlocks, and returns the owner.
func once(t testing.TB, m *Spec) (owner string, token int64) {
	t.Helper()
	l, err := m.Lock(CallerNow(context.Background()))
	require.NoError(t, err)
	owner, token = l.hold.tenure.Field(), l.hold.token
	require.NoError(t, l.Unlock())
	return owner, token
}

func isTaken(t testing.TB, m *Spec) bool {
	t.Helper()
	taken, err := m.IsLocked(context.Background())
	require.NoError(t, err)
	return taken
}

// idleCount counts idle tenures. Unlike Stats, it includes a tenure before its first look.
func idleCount(c *Engine) int { return int(c.idle.count.Load()) }

// Without competition, an idle lock is acquired again without Redis. It is released d after its last use.
func TestIdleTenureIsTakenAgain(t *testing.T) {
	t.Parallel()
	c, m := startKeeping(t, kinds.Mutex, 300*time.Millisecond)
	first, _ := once(t, m)
	for range 10 {
		again, _ := once(t, m)
		require.Equal(t, first, again)
	}
	require.Equal(t, uint64(10), c.Stats().Kept)
	require.Equal(t, 0, c.Stats().Holds)
	redistest.Eventually(t, 10*time.Second, func() bool { return !isTaken(t, m) }, "it ends")
	require.Equal(t, 0, c.Stats().Idle)
}

// G8: tokens rise over the holds of one tenure, and the next tenure's token is higher.
func TestIdleTokensRise(t *testing.T) {
	t.Parallel()
	c, m := startKeeping(t, kinds.Fenced, time.Minute)
	last := int64(0)
	for range 100 {
		_, token := once(t, m)
		require.True(t, token > last)
		last = token
	}
	require.Equal(t, uint64(99), c.Stats().Kept)
	c.releaseIdle(time.Time{})
	other := c.NewSpec(m.Key, kinds.Fenced, m.Name)
	_, token := once(t, other)
	require.True(t, token > last)
}

// An idle tenure goes to any process that asks. If a section is running, it goes at the unlock.
func TestIdleTenureIsGivenUp(t *testing.T) {
	t.Parallel()
	c, m := startKeeping(t, kinds.Mutex, time.Minute)
	l, err := m.Lock(CallerNow(context.Background()))
	require.NoError(t, err)
	of := l.hold.tenure
	require.NoError(t, l.Unlock())
	require.Equal(t, 1, idleCount(c))
	c.wanted(of)
	redistest.Eventually(t, 10*time.Second, func() bool { return !isTaken(t, m) }, "it is released")

	l, err = m.Lock(CallerNow(context.Background()))
	require.NoError(t, err)
	c.wanted(of) // again: it is remembered for a while only, and Lock has waited for Redis
	require.NoError(t, l.Unlock())
	require.False(t, isTaken(t, m), "a lock that was just asked for is kept")
}

// A Lock by another handle uses that handle's options.
func TestIdleTenureAndOtherHandles(t *testing.T) {
	t.Parallel()
	c, m := startKeeping(t, kinds.Mutex, time.Minute)
	first, _ := once(t, m)
	plain := c.NewSpec(m.Key, kinds.Mutex, m.Name)
	again, _ := once(t, plain)
	require.Equal(t, first, again)
	require.False(t, isTaken(t, m), "the handle of the last hold does not linger")

	once(t, m)
	short := c.NewSpec(m.Key, kinds.Mutex, m.Name)
	short.Lease = time.Second
	who := CallerNow(context.Background()).UpTo(0, time.Second)
	l, err := short.Lock(who)
	require.NoError(t, err)
	require.True(t, time.Until(c.Leases.Until(&l.hold.tenure.Lease)) <= time.Second)
	require.NoError(t, l.Unlock())

	once(t, m)
	fair := c.NewSpec(m.Key, kinds.Fair, m.Name)
	l, err = fair.Lock(who)
	require.NoError(t, err)
	require.NoError(t, l.Unlock())
	require.Equal(t, 0, c.Stats().Holds)
}

// G1: among simultaneous Locks, the first gets the idle tenure and the rest follow in turn.
func TestIdleTenureExcludes(t *testing.T) {
	t.Parallel()
	c, m := startKeeping(t, kinds.Mutex, time.Minute)
	plain := c.NewSpec(m.Key, kinds.Mutex, m.Name)
	inside, n := 0, 0
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 200 {
				of := m
				if i%4 == 3 {
					of = plain
				}
				l, err := of.Lock(CallerNow(context.Background()))
				if err != nil {
					t.Error(err)
					return
				}
				if inside++; inside != 1 {
					t.Error("two are inside")
				}
				n++
				inside--
				if err := l.Unlock(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, 1600, n)
}

// A lost idle tenure is useless to the next Lock. No hold is notified, because none was open.
func TestIdleTenureIsLost(t *testing.T) {
	t.Parallel()
	c, m := startKeeping(t, kinds.Mutex, time.Minute)
	l, err := m.Lock(CallerNow(context.Background()))
	require.NoError(t, err)
	first := l.hold.tenure
	require.NoError(t, l.Unlock())
	first.gone()
	require.Equal(t, 0, c.Stats().Idle)
	require.Equal(t, uint64(0), c.Stats().Lost)
	again, _ := once(t, m)
	require.True(t, again != first.Field())
}

// At most MaxIdle tenures stay idle: the most recently used.
func TestIdleTenuresAreBounded(t *testing.T) {
	t.Parallel()
	c, m := startKeeping(t, kinds.Mutex, time.Minute)
	var all []*Spec
	for i := range MaxIdle + 10 {
		x := c.NewSpec(m.Key+string(rune('a'+i)), kinds.Mutex, m.Name)
		x.Linger = time.Minute
		all = append(all, x)
		once(t, x)
	}
	require.Equal(t, MaxIdle, idleCount(c))
	for _, x := range all[:10] {
		redistest.Eventually(t, 10*time.Second, func() bool { return !isTaken(t, x) }, "it is released")
	}
	require.True(t, isTaken(t, all[10]))
}

// G5: Close and Shutdown leave nothing behind.
func TestIdleTenuresAndClose(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Engine){
		"Close": (*Engine).Close, "Shutdown": func(c *Engine) { _ = c.Shutdown(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			c, m := startKeeping(t, kinds.Mutex, time.Minute)
			once(t, m)
			require.Equal(t, 1, idleCount(c))
			end(c)
			other := startEngine(t, redistest.Dial(t, redistest.Shared(t)), silent{})
			require.False(t, isTaken(t, other.NewSpec(m.Key, kinds.Mutex, m.Name)))
		})
	}
}

func BenchmarkIdle(b *testing.B) {
	_, m := startKeeping(b, kinds.Mutex, time.Minute)
	b.ReportAllocs()
	for b.Loop() {
		l, err := m.Lock(CallerNow(context.Background()))
		if err != nil {
			b.Fatal(err)
		}
		_ = l.Unlock()
	}
}
