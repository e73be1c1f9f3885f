package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// G1: there are many readers or one writer, across processes, re-entries, downgrades and upgrades, on each deployment
// and with odd names. At the end nothing is left.
func TestReadersOrOneWriter(t *testing.T) {
	redistest.RunVirtual(t, "standalone", func(t *testing.T) {
		s := redistest.Start(t)
		for _, name := range []string{"a", "b:c:", "d{e}f", "{}g", "{h"} {
			readOrWrite(t, []*rlock.Client{newClient(t, s.Client(t)), newClient(t, s.Client(t))}, s.Client(t), name)
		}
	})
	redistest.RunVirtual(t, "without hand-offs", func(t *testing.T) {
		s := redistest.Start(t)
		o := rlock.Options{HandOff: rlock.HandOff{Most: -1}}
		readOrWrite(t, []*rlock.Client{newClient(t, s.Client(t), o), newClient(t, s.Client(t), o)}, s.Client(t), "a")
	})
}

// The same on a cluster.
func TestReadersOrOneWriterOnACluster(t *testing.T) {
	c := redistest.SharedCluster(t)
	redistest.Parallel(t)
	for _, o := range []rlock.Options{{}, {PlainPubSub: true}} {
		for _, odd := range []string{"%s", "d{%s}f"} {
			name := fmt.Sprintf(odd, redistest.Name(t))
			readOrWrite(t, []*rlock.Client{newClient(t, c.Client(t), o), newClient(t, c.Client(t), o)}, c.Client(t), name)
		}
	}
	_, _, err := newClient(t, c.Client(t)).RWMutex("{}g").Read().Lock(context.Background())
	require.ErrorContains(t, err, "braces")
}

// readOrWrite is the work of both.
func readOrWrite(t *testing.T, clients []*rlock.Client, rdb rueidis.Client, name string) {
	t.Helper()
	w := &rwExclusion{t: t}
	ctx := context.Background()
	var wg sync.WaitGroup
	for i := range 12 {
		rw := clients[i%len(clients)].RWMutex(name)
		wg.Go(func() {
			for turn := range 10 {
				sleep(rand.N(time.Millisecond))
				what := (i + turn) % 5
				switch what {
				case 0, 1: // a reader, possibly with two levels
					assert.NoError(t, rw.Read().Do(ctx, func(ctx context.Context) error {
						defer w.read()()
						if what == 0 {
							return nil
						}
						return rw.Read().Do(ctx, func(context.Context) error { return nil })
					}))
				case 2: // a writer with two levels that also reads
					assert.NoError(t, rw.Write().Do(ctx, func(ctx context.Context) error {
						defer w.write(0)()
						return rw.Write().Do(ctx, func(ctx context.Context) error {
							return rw.Read().Do(ctx, func(context.Context) error { return nil })
						})
					}))
				case 3: // a writer that downgrades
					ctx, _, err := rw.Write().Lock(ctx)
					if !assert.NoError(t, err) {
						return
					}
					w.write(0)()
					done := w.read() // from here on it counts as a reader
					_, unlock, err := rw.Downgrade(ctx)
					assert.NoError(t, err)
					done()
					assert.NoError(t, unlock())
				case 4: // a reader that upgrades and downgrades again
					u := rw.Upgradeable()
					ctx, unlock, err := u.Lock(ctx)
					if !assert.NoError(t, err) {
						return
					}
					done := w.read()
					_, down, err := u.Upgrade(ctx)
					assert.NoError(t, err)
					w.write(1)()
					assert.NoError(t, down())
					done()
					assert.NoError(t, unlock())
				}
			}
		})
	}
	wg.Wait()
	for _, c := range clients {
		c.Close()
	}
	rwNothing(t, rdb, name)
}

// The hold in the ctx, of either side, decides whether a Lock gets in, re-enters or is refused. The queries agree.
func TestReadWriteReentry(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx := context.Background()
		rw := b.RWMutex(b.name)
		require.Equal(t, b.name, rw.Name())
		check := func(ctx context.Context, read, write bool, reads, writes int) {
			t.Helper()
			for _, side := range []struct {
				*rlock.Mutex
				locked bool
				count  int
			}{{rw.Read(), read, reads}, {rw.Write(), write, writes}} {
				locked := answer(side.IsLocked(ctx)).ok(t)
				require.Equal(t, side.locked, locked)
				count := answer(side.HoldCount(ctx)).ok(t)
				require.Equal(t, side.count, count)
			}
		}
		check(ctx, false, false, 0, 0)

		reader, leave := enter(t, ctx, rw.Read())
		check(reader, true, false, 1, 0)
		check(ctx, true, false, 0, 0)
		again, leaveAgain := enter(t, reader, rw.Read())
		check(again, true, false, 2, 0)
		require.Equal(t, rlock.Owner(reader), rlock.Owner(again))
		_, other, err := rw.Read().TryLock(ctx, 0)
		require.NoError(t, err, "readers share")
		require.NoError(t, other())

		for _, within := range []context.Context{reader, again} {
			began := time.Now()
			got, unlock, err := rw.Write().Lock(within)
			require.ErrorIs(t, err, rlock.ErrUpgrade)
			require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
			require.Equal(t, within, got)
			require.Less(t, redistest.Ran(t, began, time.Now()), soon)
		}
		_, _, err = rw.Write().TryLock(rlock.Detach(reader), 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired, "a detached ctx competes")
		requireLockFails(t, reader, rw.Upgradeable(), rlock.ErrUpgrade)
		require.NoError(t, leaveAgain())
		require.NoError(t, leave())
		_, _, err = rw.Downgrade(reader) //rlockvet:ignore it has to fail
		require.ErrorIs(t, err, rlock.ErrNotHeld)
		check(ctx, false, false, 0, 0)

		writer, unlock := enter(t, ctx, rw.Write())
		require.True(t, strings.HasSuffix(rlock.Owner(writer), ":write"))
		check(writer, false, true, 0, 1)
		_, _, err = rw.Read().TryLock(ctx, 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		_, _, err = rw.Write().TryLock(ctx, 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		writer2, unlock2 := enter(t, writer, rw.Write())
		check(writer2, false, true, 0, 2)
		inside, leave := enter(t, writer2, rw.Read())
		check(inside, true, true, 1, 2)
		require.NotEqual(t, rlock.Owner(writer)[:len(rlock.Owner(inside))], rlock.Owner(inside), "a hold of its own")
		inside2, leave2 := enter(t, inside, rw.Read())
		check(inside2, true, true, 2, 2)
		_, unlock3, err := rw.Write().Lock(inside2)
		require.NoError(t, err, "the writer's section is still open")
		require.NoError(t, unlock3())
		require.NoError(t, leave2())
		require.NoError(t, unlock2())
		require.NoError(t, unlock())
		check(context.WithoutCancel(inside), true, false, 1, 0)
		require.ErrorIs(t, inside.Err(), context.Canceled, "its ctx was a child of the writer's")
		_, _, err = rw.Write().Lock(context.WithoutCancel(inside))
		require.ErrorIs(t, err, rlock.ErrUpgrade, "the writer has ended, the reader has not")
		require.NoError(t, leave())
		rwNothing(t, b.rdb, b.name)

		for _, bad := range []*rlock.RWMutex{b.RWMutex(""), b.RWMutex(b.name, rlock.WithLease(-1))} {
			for _, l := range []locker{bad.Read(), bad.Write(), bad.Upgradeable()} {
				_, _, err := l.Lock(ctx)
				require.Error(t, err)
			}
		}
		require.Panics(t, func() { (*rlock.RWMutex)(nil).Read() })
		require.Panics(t, func() { new(rlock.RWMutex).Upgradeable() })
	})
}

// If a lock of another kind has the name, it counts as held on both sides, and the refusal names the cause.
func TestReadWriteBesidePlain(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx := context.Background()
		rw, m := b.RWMutex(b.name), b.Mutex(b.name)
		_, unlock := enter(t, ctx, m)
		for _, side := range []*rlock.Mutex{rw.Read(), rw.Write()} {
			_, _, err := side.TryLock(ctx, 0)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			require.ErrorContains(t, err, " left, by a lock of another kind (give each its own name)")
		}
		require.NoError(t, unlock())
		for _, side := range []*rlock.Mutex{rw.Read(), rw.Write()} {
			ctx, unlock := enter(t, ctx, side)
			for _, l := range []rlock.Locker{m, b.FairMutex(b.name), rlock.All(m, b.Mutex(b.name+":2"))} {
				_, _, err := l.TryLock(rlock.Detach(ctx), 0)
				require.ErrorIs(t, err, rlock.ErrNotAcquired)
				require.ErrorContains(t, err, "held by "+rlock.Owner(ctx)+", with ")
				require.ErrorContains(t, err, " left, by a lock of another kind (give each its own name)")
			}
			_, _, err := rw.Write().TryLock(rlock.Detach(ctx), 0)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			require.NotContains(t, err.Error(), "another kind")
			require.NoError(t, unlock())
		}
	})
}

// WithoutReentry forbids a Lock inside the caller's own hold, but not the downgrade of a writer that was a reader before.
func TestReadWriteWithoutReentry(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		rw := b.RWMutex(b.name, rlock.WithoutReentry())
		section, unlock := enter(t, context.Background(), rw.Upgradeable())
		for _, l := range []locker{rw.Read(), rw.Upgradeable()} {
			requireLockFails(t, section, l, rlock.ErrReentry)
		}
		writer, _, err := rw.Upgradeable().Upgrade(section)
		require.NoError(t, err)
		for _, l := range []locker{rw.Read(), rw.Write(), upgrading{rw.Upgradeable(), writer}} {
			requireLockFails(t, writer, l, rlock.ErrReentry)
		}
		reader, leave, err := rw.Downgrade(writer)
		require.NoError(t, err)
		require.Equal(t, "read", b.fieldsOf(t)["mode"])
		requireLockFails(t, reader, rw.Read(), rlock.ErrReentry)
		require.NoError(t, leave())
		require.NoError(t, unlock())
		rwNothing(t, b.rdb, b.name)
	})
}

type rwKey struct{}

// A downgrade admits the waiting readers at once, and no writer in between. Afterwards the section's ctx lives as long
// as the ctx that was passed to the writer's Lock.
func TestDowngrade(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		why := errors.New("why")
		parent, cancel := context.WithCancelCause(context.WithValue(context.Background(), rwKey{}, "parent"))
		defer cancel(nil)
		rw := b.RWMutex(b.name)
		writer, unlock := enter(t, parent, rw.Write())
		other := newClient(t, b.rdb).RWMutex(b.name)
		var waiting []pendingLock
		for range 8 {
			waiting = append(waiting, lockAsync(t, rw.Read()), lockAsync(t, other.Read()))
		}
		b.awaitWaiters(t, len(waiting))

		began := time.Now()
		reader, leave, err := rw.Downgrade(context.WithValue(writer, rwKey{}, "section"))
		require.NoError(t, err)
		require.NoError(t, unlock(), "after the downgrade, unlock has nothing to do")
		require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
		require.ErrorIs(t, writer.Err(), context.Canceled)
		require.NoError(t, reader.Err())
		require.Equal(t, "section", reader.Value(rwKey{}))
		for _, p := range waiting {
			got := p.gets(t, soon)
			require.Less(t, got.at.Sub(began), 5*time.Second)
			require.NoError(t, got.unlock())
		}
		cancel(why)
		<-reader.Done()
		require.ErrorIs(t, context.Cause(reader), why)
		require.NoError(t, leave())
		require.ErrorIs(t, leave(), rlock.ErrNotHeld)
		rwNothing(t, b.rdb, b.name)

		require.NoError(t, rw.Write().Do(context.Background(), func(outer context.Context) error {
			return rw.Write().Do(outer, func(inner context.Context) error {
				reader, leave, err := rw.Downgrade(inner)
				require.NoError(t, err)
				require.NoError(t, reader.Err())
				_, leaveOuter, err := rw.Downgrade(outer)
				require.NoError(t, err)
				require.NoError(t, leave())
				require.ErrorIs(t, leave(), rlock.ErrNotHeld)
				return leaveOuter()
			})
		}), "in a Do, of each level")
		rwNothing(t, b.rdb, b.name)

		writer, unlock = enter(t, context.Background(), rw.Write())
		answer(rw.Write().ForceUnlock(context.Background())).ok(t)
		_, _, err = rw.Downgrade(writer)
		require.ErrorIs(t, err, rlock.ErrLost)
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		rwNothing(t, b.rdb, b.name)
	})
}

// rwNothing checks that nothing is left of a read/write lock: no key of any kind, and no subscription.
func rwNothing(t testing.TB, rdb rueidis.Client, names ...string) {
	t.Helper()
	nodes := rdb.Nodes()
	for _, name := range names {
		redistest.Eventually(t, 10*time.Second, func() bool {
			for _, node := range nodes {
				for _, cmd := range [][]string{
					{"KEYS", "*" + name + "*"}, {"PUBSUB", "CHANNELS", "*" + name + "*"}, {"PUBSUB", "SHARDCHANNELS", "*" + name + "*"},
				} {
					left, err := node.Do(context.Background(), node.B().Arbitrary(cmd...).Build()).AsStrSlice()
					if err == nil && len(left) > 0 {
						return false
					}
				}
			}
			return true
		}, "nothing is left of "+name)
	}
}

// fieldsOf returns the hash of a read/write lock.
func (b fixture) fieldsOf(t testing.TB) map[string]string {
	t.Helper()
	m := answer(b.do(t, "HGETALL", b.name).AsStrMap()).ok(t)
	return m
}

// rwExclusion fails the test unless it sees many readers or one writer. Callers say how many readers belong to the writer itself.
type rwExclusion struct {
	t                *testing.T
	readers, writers atomic.Int32
}

func (w *rwExclusion) read() (done func()) {
	w.readers.Add(1)
	assert.Zero(w.t, w.writers.Load(), "a reader beside a writer")
	return func() {
		assert.Zero(w.t, w.writers.Load(), "a writer got in beside a reader")
		w.readers.Add(-1)
	}
}

// write marks the start of a writer's section; own is the number of readers that belong to this writer.
func (w *rwExclusion) write(own int32) (done func()) {
	assert.Equal(w.t, int32(1), w.writers.Add(1), "two writers")
	assert.Equal(w.t, own, w.readers.Load(), "a writer beside readers")
	return func() {
		assert.Equal(w.t, own, w.readers.Load(), "a reader got in beside a writer")
		w.writers.Add(-1)
	}
}

// awaitWaiters waits until n goroutines of the test are queued and subscribed.
func (b fixture) awaitWaiters(t testing.TB, n int) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == n }, "they wait")
}
