//go:build interop

package rlock_test

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// TestInteropReadWrite is TestInterop for read/write locks.
func TestInteropReadWrite(t *testing.T) {
	inEach(t, settings(t), func(t *testing.T, all *world) {
		w := rwWorld{all}
		t.Run("exclusion", w.exclusion)
		t.Run("wake-up", w.wakeUp)
		t.Run("names", w.names)
		t.Run("downgrade", w.downgrade)
		t.Run("forced", w.forced)
		t.Run("taken along", w.alongWrite)
		t.Run("leases", func(t *testing.T) {
			t.Run("watchdog", w.watchdog)
			t.Run("asked", w.asked)
			t.Run("expiry", w.expiry)
			t.Run("Java is killed", w.javaIsKilled)
			t.Run("Go is killed", w.goIsKilled)
			t.Run("Go lasts longer than Java", w.goLastsLonger)
			t.Run("the longest leaves", w.longestLeaves)
		})
	})
}

// Writers of both sides add to a number, and readers of both see that it stays as it is while they look.
func (w rwWorld) exclusion(t *testing.T) {
	alone(t)
	const long = 5 * time.Second
	name := redistest.Name(t)
	file := filepath.Join(t.TempDir(), "counter")
	require.NoError(t, os.WriteFile(file, []byte("0"), 0o600))
	var replies []<-chan reply
	for _, r := range []*redisson{w.java, w.quickJava} {
		replies = append(replies,
			r.send(t, "writer", "hammer", rwWord("write", name), url.QueryEscape(file), ms(long)),
			r.send(t, "reader", "steady", rwWord("read", name), url.QueryEscape(file), ms(long)))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var writes, reads int64
	end := time.Now().Add(long)
	for _, c := range []*rlock.Client{w.watch.Client, w.quickGo} {
		rw := c.RWMutex(name)
		wg.Go(func() {
			for time.Now().Before(end) {
				assert.NoError(t, rw.Write().Do(context.Background(), func(context.Context) error { return addOne(file) }))
				mu.Lock()
				writes++
				mu.Unlock()
				sleep(5 * time.Millisecond) // room for readers
			}
		})
		wg.Go(func() {
			for time.Now().Before(end) {
				assert.NoError(t, rw.Read().Do(context.Background(), func(context.Context) error {
					before, err := readNumber(file)
					assert.NoError(t, err)
					sleep(time.Millisecond)
					after, err := readNumber(file)
					assert.NoError(t, err)
					assert.Equal(t, before, after, "written while it was read")
					return nil
				}))
				mu.Lock()
				reads++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	inJava := [2]int64{} // writes, reads
	for i, ch := range replies {
		r := w.java.await(t, ch)
		require.NoError(t, r.err)
		n, err := strconv.ParseInt(r.value, 10, 64)
		require.NoError(t, err)
		require.Positive(t, n)
		inJava[i%2] += n
	}
	require.Positive(t, reads)
	require.Positive(t, writes)
	got, err := readNumber(file)
	require.NoError(t, err)
	require.Equal(t, inJava[0]+writes, got, "an addition was lost")
	require.False(t, w.watch.exists(t, name))
	t.Logf("%d writes and %d reads in Go, %d and %d in Java", writes, reads, inJava[0], inJava[1])
}

func (w rwWorld) wakeUp(t *testing.T) {
	const warmUp, rounds = 10, 40
	for way, who := range w.ways() {
		for _, s := range [][2]string{{"write", "read"}, {"read", "write"}, {"write", "write"}} {
			t.Run(way+" to "+s[0]+", the other waits to "+s[1], func(t *testing.T) {
				alone(t)
				holder, waiter := who[0](), who[1]()
				name := redistest.Name(t)
				var took []time.Duration
				for range warmUp + rounds {
					rwLock(t, holder, s[0], name, testTimeout)
					in := w.rwWaits(t, waiter, s[1], name)
					unlocked := rwUnlock(t, holder, s[0], name)
					took = append(took, await(t, in, 5*time.Second).ended.Sub(unlocked.began))
					rwUnlock(t, waiter, s[1], name)
				}
				took = took[warmUp:]
				slices.Sort(took)
				t.Logf("wake-up: median %v, max %v", took[rounds/2], took[rounds-1])
				require.LessOrEqual(t, took[rounds/2], 20*time.Millisecond, "median")
				require.LessOrEqual(t, took[rounds-1], late, "max")
				require.False(t, w.watch.exists(t, name))
			})
		}
	}
}

func (w rwWorld) names(t *testing.T) {
	for way, who := range w.ways() {
		t.Run(way, func(t *testing.T) {
			a, b, other := who[0](), who[1](), who[1]()
			for _, name := range []string{"{tag}:rest", "a{tag}b{other}", "a:b:c:", ":write", "größe 🔒"} {
				name += redistest.Name(t)
				rwLock(t, a, "read", name, testTimeout)
				rwLock(t, b, "read", name, testTimeout)
				other.tryInVain(t, "write", name)
				rwUnlock(t, a, "read", name)
				require.True(t, w.watch.exists(t, name))
				rwUnlock(t, b, "read", name)
				require.False(t, w.watch.exists(t, name), name)
				rwLock(t, a, "write", name, testTimeout)
				rwLock(t, a, "write", name, testTimeout)
				b.tryInVain(t, "read", name)
				b.tryInVain(t, "write", name)
				rwUnlock(t, a, "write", name)
				rwUnlock(t, a, "write", name)
				require.False(t, w.watch.exists(t, name), name)
			}
		})
	}
}

// A writer that reads and then unlocks the write side is a reader for the other side, too. Ours tells the readers that wait; after
// Redisson's, one that comes is let in.
func (w rwWorld) downgrade(t *testing.T) {
	name := redistest.Name(t)
	java := rwThread{w.java.thread()}
	goes := w.watch.RWMutex(name)
	ctx, _, err := goes.Write().Lock(context.Background())
	require.NoError(t, err)
	in := w.rwWaits(t, java, "read", name)
	began := time.Now()
	_, leave, err := goes.Downgrade(ctx)
	require.NoError(t, err)
	require.Less(t, await(t, in, 5*time.Second).ended.Sub(began), late)
	other := rwThread{w.java.thread()}
	other.tryInVain(t, "write", name)
	require.NoError(t, leave())
	other.tryInVain(t, "write", name)
	rwUnlock(t, java, "read", name)
	require.False(t, w.watch.exists(t, name))

	rwLock(t, java, "write", name, 0)
	rwLock(t, java, "read", name, 0)
	rwGo{newGoActor(w.watch.Client)}.tryInVain(t, "read", name)
	rwUnlock(t, java, "write", name)
	_, leave, err = goes.Read().TryLock(context.Background(), 0)
	require.NoError(t, err)
	rwUnlock(t, java, "read", name)
	rwGo{newGoActor(w.watch.Client)}.tryInVain(t, "write", name)
	require.NoError(t, leave())
	require.False(t, w.watch.exists(t, name))

	// A reader of ours that may upgrade, beside one of Redisson's, which leaves.
	rwLock(t, java, "read", name, 0)
	up := goes.Upgradeable()
	reader, end, err := up.Lock(context.Background())
	require.NoError(t, err)
	upgrade := lockAsync(t, upgrading{up, reader})
	sleep(200 * time.Millisecond)
	upgrade.stillWaits(t)
	rwUnlock(t, java, "read", name)
	upgrade.cancel() // Redisson tells nobody that one reader is left
	require.Error(t, upgrade.get(t, soon).err)
	writer, down, err := up.Upgrade(reader)
	require.NoError(t, err)
	require.NoError(t, writer.Err())
	java.tryInVain(t, "read", name)
	require.NoError(t, down())
	rwLock(t, java, "read", name, 0)
	require.NoError(t, end())
	rwUnlock(t, java, "read", name)
	require.False(t, w.watch.exists(t, name))
}

func (w rwWorld) forced(t *testing.T) {
	java := rwThread{w.quickJava.thread()}
	goes := rwGo{newGoActor(w.quickGo)}
	for _, side := range []string{"read", "write"} {
		name := redistest.Name(t) + side
		lost := newGoActor(w.quickGo)
		await(t, lost.startOn(t, rwOf(w.quickGo, side, name)), 10*time.Second)
		in := w.rwWaits(t, goes, "write", name)
		require.Equal(t, "true", java.ask(t, "force", rwWord(side, name)))
		await(t, in, 5*time.Second)
		select {
		case <-lost.ctx().Done():
		case <-time.After(shortLease):
			require.FailNow(t, "not told")
		}
		require.ErrorIs(t, lost.unlock(t, name).err, rlock.ErrLost)
		rwUnlock(t, goes, "write", name)

		rwLock(t, java, side, name, testTimeout)
		held, err := rwOf(w.quickGo, map[string]string{"read": "write", "write": "read"}[side], name).ForceUnlock(context.Background())
		require.NoError(t, err)
		require.False(t, held)
		other := rwThread{w.quickJava.thread()}
		in = w.rwWaits(t, other, "write", name)
		held, err = rwOf(w.quickGo, side, name).ForceUnlock(context.Background())
		require.NoError(t, err)
		require.True(t, held)
		await(t, in, 5*time.Second)
		require.Error(t, java.unlock(t, side, name).err)
		rwUnlock(t, other, "write", name)
		require.False(t, w.watch.exists(t, name))
	}
}

// Readers of both sides outlive the watchdog time beside each other, a writer of each alone.
func (w rwWorld) watchdog(t *testing.T) {
	t.Parallel()
	name, second := redistest.Name(t), redistest.Name(t)+"w"
	java := rwThread{w.quickJava.thread()}
	rwLock(t, java, "read", name, 0)
	ctx, leave, err := w.quickGo.RWMutex(name).Read().Lock(context.Background())
	require.NoError(t, err)
	wctx, unlock, err := w.quickGo.RWMutex(second).Write().Lock(context.Background())
	require.NoError(t, err)
	inside, leaveInside, err := w.quickGo.RWMutex(second).Read().Lock(wctx)
	require.NoError(t, err)
	sleep(shortLease + shortLease/2)
	require.NoError(t, ctx.Err())
	require.NoError(t, inside.Err())
	rwThread{w.quickJava.thread()}.tryInVain(t, "read", second)
	require.NoError(t, leave())
	rwGo{newGoActor(w.watch.Client)}.tryInVain(t, "write", name)
	rwUnlock(t, java, "read", name)
	require.False(t, w.watch.exists(t, name))
	require.NoError(t, leaveInside())
	require.NoError(t, unlock())
	require.False(t, w.watch.exists(t, second))
}

// A fixed lease ends, of each side to each side.
func (w rwWorld) expiry(t *testing.T) {
	t.Parallel()
	const short = 2 * time.Second
	for way, who := range w.ways() {
		for _, s := range [][2]string{{"write", "read"}, {"read", "write"}} {
			t.Run(way+" to "+s[0], func(t *testing.T) {
				t.Parallel()
				holder, waiter := who[0](), who[1]()
				name := redistest.Name(t)
				rwLock(t, holder, s[0], name, short)
				in := waiter.start(t, s[1], name, testTimeout)
				await(t, in, short+late)
				require.Error(t, holder.unlock(t, s[0], name).err)
				rwUnlock(t, waiter, s[1], name)
				require.False(t, w.watch.exists(t, name))
			})
		}
	}
}

// A reader of Redisson is killed. Beside a reader of ours that stays, the lock is free when that leaves; else when its lease ends.
func (w rwWorld) javaIsKilled(t *testing.T) {
	t.Parallel()
	java := w.startJava(t, shortLease)
	for _, name := range []string{"alone", "beside"} {
		rwLock(t, rwThread{java.thread()}, "read", name, 0)
	}
	_, leave, err := w.quickGo.RWMutex("beside").Read().Lock(context.Background())
	require.NoError(t, err)
	java.kill()
	killed := time.Now()
	in := rwGo{newGoActor(w.quickGo)}.start(t, "write", "alone", testTimeout)
	require.Less(t, await(t, in, shortLease+2*late).ended.Sub(killed), shortLease+late)
	sleep(shortLease / 2)
	waits := lockAsync(t, w.quickGo.RWMutex("beside").Write())
	sleep(shortLease/2 + late)
	waits.stillWaits(t)
	require.NoError(t, leave())
	waits.getAndUnlock(t, soon)
}

// The same with a process of ours.
func (w rwWorld) goIsKilled(t *testing.T) {
	t.Parallel()
	name := redistest.Name(t)
	goes := w.startGo(t, goJob{Watchdog: shortLease, Name: name, Side: "read"})
	goes.begin(t)
	goes.expect(t, "held", time.Minute)
	waiter := rwThread{w.quickJava.thread()}
	in := waiter.start(t, "write", name, testTimeout)
	sleep(shortLease + shortLease/3) // it is renewed
	requireWaiting(t, in)
	goes.kill()
	await(t, in, 2*shortLease+late) // Redisson sleeps for what it was told last
	rwUnlock(t, waiter, "write", name)
	require.False(t, w.watch.exists(t, name))
}

// A reader of ours with a lease that is longer than the watchdog time, beside one of Redisson's, whose renewals set the expiry that both
// share, and which leaves then, or is killed: no writer is in before ours knows.
func (w rwWorld) goLastsLonger(t *testing.T) {
	t.Parallel()
	const long = 3 * shortLease
	for _, end := range []string{"unlock", "kill"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			java := w.quickJava
			if end == "kill" {
				java = w.startJava(t, shortLease)
			}
			reader, name := rwThread{java.thread()}, redistest.Name(t)
			ctx, unlock, err := w.quickGo.RWMutex(name, rlock.WithLease(long)).Read().Lock(context.Background())
			require.NoError(t, err)
			began := time.Now()
			rwLock(t, reader, "read", name, 0)
			writer := rwGo{newGoActor(w.watch.Client)}
			sleep(shortLease + shortLease/2) // renewed
			if end == "kill" {
				java.kill()
			} else {
				rwUnlock(t, reader, "read", name)
			}
			for time.Since(began) < long-late {
				writer.tryInVain(t, "write", name)
				require.NoError(t, ctx.Err())
				sleep(20 * time.Millisecond)
			}
			in := writer.start(t, "write", name, testTimeout)
			await(t, in, 3*late)
			requireLostBy(t, ctx, time.Now())
			require.ErrorIs(t, unlock(), rlock.ErrLost)
			rwUnlock(t, writer, "write", name)
		})
	}
}

// Our reader, which lasts longest, leaves, and another one's lease ends: a writer of either side, which was told of ours, is in then.
func (w rwWorld) longestLeaves(t *testing.T) {
	t.Parallel()
	const short = shortLease
	for way, who := range w.ways() {
		for what, dies := range map[string]rwSide{"Go": rwGo{newGoActor(w.quickGo)}, "Java": rwThread{w.quickJava.thread()}} {
			t.Run(what+"'s lease ends, and "+strings.TrimSuffix(way, " holds")+" does not wait", func(t *testing.T) {
				t.Parallel()
				name := redistest.Name(t)
				writer := who[1]()
				rwLock(t, dies, "read", name, short)
				began := time.Now()
				_, leave, err := w.watch.RWMutex(name).Read().Lock(context.Background())
				require.NoError(t, err)
				in := w.rwWaits(t, writer, "write", name)
				require.NoError(t, leave())
				got := await(t, in, 2*shortLease)
				require.Less(t, got.ended.Sub(began), short+late)
				rwUnlock(t, writer, "write", name)
			})
		}
	}
}
