package rlock_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// G4: a writer that waits leaves, and has no mark: Redis does not take one, since the key has something else, or the user no right to it. It
// stood only in the way of the readers of its process, and they read on at once.
func TestReadersBehindAWriterWithoutMarks(t *testing.T) {
	redistest.OnlyVirtual(t, "that all wait can be seen only there", func(t *testing.T) {
		b := newFixture(t)
		require.NoError(t, b.do(t, "SET", "rlock_writers:{"+b.name+"}", "something else").Error())
		rw := b.RWMutex(b.name)
		hold := locked(t, newClient(t, b.rdb).RWMutex(b.name).Read())
		ctx, leave := context.WithCancel(context.Background())
		writer := lockAsync(t, under{ctx, rw.Write()})
		redistest.Settle(t)
		reader := lockAsync(t, rw.Read())
		redistest.Settle(t)
		require.Equal(t, 2, waiting(t))
		began := time.Now()
		leave()
		require.ErrorIs(t, writer.get(t, testTimeout).err, context.Canceled)
		require.NoError(t, reader.gets(t, testTimeout).unlock())
		require.Zero(t, time.Since(began))
		require.NoError(t, hold.unlock())
	})
}

// G2: readers, and a writer that also reads, outlive their watchdog time. Each learns of a deleted key, of a forced
// unlock and of the end of a fixed lease, while others stay inside.
func TestReadWriteLeases(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
		ctx := context.Background()
		rw := b.RWMutex(b.name)
		writer, unlock := enter(t, ctx, rw.Write())
		inside, leave := enter(t, writer, rw.Read())
		inside, leaveInner := enter(t, inside, rw.Read())
		sleep(shortWatchdog + shortWatchdog/2)
		require.NoError(t, inside.Err())
		reader, leaveLast, err := rw.Downgrade(writer)
		require.NoError(t, err)
		require.NoError(t, leaveInner())
		require.NoError(t, leave())

		fixed, unlockFixed, err := b.RWMutex(b.name, rlock.WithLease(time.Second)).Read().Lock(ctx)
		require.NoError(t, err)
		<-fixed.Done()
		require.ErrorIs(t, context.Cause(fixed), rlock.ErrLost)
		sleep(shortWatchdog)
		require.NoError(t, reader.Err())
		_, _, err = newClient(t, b.rdb).RWMutex(b.name).Write().TryLock(ctx, 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.Len(t, b.fieldsOf(t), 2, "the dead one was dropped")
		require.ErrorIs(t, unlockFixed(), rlock.ErrLost)

		next := lockAsync(t, newClient(t, b.rdb).RWMutex(b.name).Write())
		b.awaitWaiters(t, 1)
		answer(rw.Write().ForceUnlock(ctx)).is(t, false, "the other side has it")
		answer(rw.Read().ForceUnlock(ctx)).is(t, true)
		got := next.gets(t, soon)
		redistest.Within(t, shortWatchdog, reader.Done(), "it is told")
		require.ErrorIs(t, context.Cause(reader), rlock.ErrLost)
		require.ErrorIs(t, leaveLast(), rlock.ErrLost)
		require.NoError(t, got.unlock())
		require.NoError(t, unlock(), "it was downgraded")
		rwNothing(t, b.rdb, b.name)
	})
}

// G1, G2: Redisson's renewal of a reader sets the hash's expiry to its own watchdog time (up to 4.3.1 that of all hold
// keys, too); then Redisson dies. A reader of ours with a longer lease, fixed or not, keeps writers out until its ctx
// ends.
func TestReaderBesideRenewalsOfRedisson(t *testing.T) {
	const long = 3 * shortWatchdog
	ctx := context.Background()
	for what, o := range map[string][]rlock.Option{
		"a fixed lease":   {rlock.WithLease(long)},
		"a longest hold":  {rlock.WithMaxHold(2 * shortWatchdog)},
		"both":            {rlock.WithMaxHold(2 * shortWatchdog), rlock.WithLease(long)},
		"with a grace":    {rlock.WithLease(2 * shortWatchdog), rlock.WithGrace(time.Second)},
		"a lease as long": {rlock.WithLease(shortWatchdog)},
	} {
		redistest.RunVirtual(t, what, func(t *testing.T) {
			b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
			section, unlock, err := b.RWMutex(b.name, o...).Read().Lock(ctx)
			require.NoError(t, err)
			keys := []string{b.name, "{" + b.name + "}:" + rlock.Owner(section) + ":rwlock_timeout:1"}
			renewal := strconv.FormatInt(shortWatchdog.Milliseconds()*3/4, 10) // what is left of one, when Redisson dies
			sleep(50 * time.Millisecond)
			for _, key := range keys {
				require.NoError(t, b.do(t, "PEXPIRE", key, renewal).Error())
			}
			writer := newClient(t, b.rdb).RWMutex(b.name).Write()
			for {
				if _, _, err = writer.TryLock(ctx, 0); err == nil {
					break
				}
				require.ErrorIs(t, err, rlock.ErrNotAcquired)
				sleep(30 * time.Millisecond)
			}
			select {
			case <-section.Done():
			case <-time.After(time.Second / 2):
				t.Fatal("a writer is in, although the reader's ctx is not cancelled")
			}
			var lost *rlock.LostError
			require.ErrorAs(t, context.Cause(section), &lost)
			require.NotEqual(t, rlock.LostGone, lost.Reason, "the reader had its whole lease")
			require.ErrorIs(t, unlock(), rlock.ErrLost)
			answer(writer.ForceUnlock(ctx)).ok(t)
		})
	}
}

// G5: somebody deletes the hash of a reader with two levels, or forces it open as another kind. However the loss is
// noticed, the unlock leaves no hold key.
func TestDeletedReaderLeavesNothing(t *testing.T) {
	ctx := context.Background()
	for name, find := range map[string]func(ctx context.Context, rw *rlock.RWMutex){
		"by the unlock": func(context.Context, *rlock.RWMutex) {},
		"by a renewal":  func(ctx context.Context, _ *rlock.RWMutex) { <-ctx.Done() },
		"by the count": func(ctx context.Context, rw *rlock.RWMutex) {
			_, unlock, _ := rw.Read().Lock(ctx)
			<-ctx.Done()
			_ = unlock()
		},
		"by the upgrade": func(ctx context.Context, rw *rlock.RWMutex) { _, _, _ = rw.Upgradeable().Upgrade(ctx) },
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b := newFixture(t, rlock.Options{WatchdogTimeout: 6 * time.Second})
			rw := b.RWMutex(b.name)
			outer, unlockOuter := enter(t, ctx, rw.Upgradeable())
			inner, unlockInner := enter(t, outer, rw.Read())
			if name == "by the unlock" {
				answer(b.Mutex(b.name).ForceUnlock(ctx)).ok(t)
			} else {
				b.do(t, "DEL", b.name)
			}
			find(inner, rw)
			errs := []error{unlockInner(), unlockOuter()}
			if name != "by the unlock" {
				require.ErrorIs(t, errs[0], rlock.ErrLost)
			}
			require.ErrorIs(t, errs[1], rlock.ErrLost)
			redistest.Eventually(t, soon, func() bool {
				left, err := b.do(t, "KEYS", "*"+b.name+"*").AsStrSlice()
				return err == nil && len(left) == 0
			}, "no key is left")
		})
	}
}

// G5, G6: the request or the reply of any call is lost, with or without its connection. Nothing is counted twice, and nothing is left.
func TestReadWriteLostReplies(t *testing.T) {
	for leg, on := range legs {
		for _, action := range []redistest.Action{redistest.Cut, redistest.Drop} {
			for n, call := range []string{
				"write", "write again", "read within", "read again", "read less", "write less", "downgrade", "read off",
			} {
				redistest.RunVirtual(t, leg+"/"+string(action)+"/"+call, func(t *testing.T) {
					c, proxy, past := behindProxy(t, anyWay)
					past.name += "x"
					rw := c.RWMutex(past.name)
					ctx := context.Background()
					warm := c.RWMutex(redistest.Name(t) + "warm")
					require.NoError(t, warm.Write().Do(ctx, func(ctx context.Context) error {
						return warm.Read().Do(ctx, func(context.Context) error { return nil })
					}))
					on(proxy, redistest.Nth(n+1, "EVALSHA", action))
					w1, u1 := enter(t, ctx, rw.Write())
					w2, u2 := enter(t, w1, rw.Write())
					r1, l1 := enter(t, w2, rw.Read())
					_, l2 := enter(t, r1, rw.Read())
					require.NoError(t, l2())
					require.NoError(t, u2())
					fields := past.fieldsOf(t)
					require.Equal(t, "1", fields[rlock.Owner(w1)])
					require.Equal(t, "1", fields[rlock.Owner(r1)])
					require.NoError(t, u1())
					require.Equal(t, "read", past.fieldsOf(t)["mode"])
					require.NoError(t, l1())
					c.Close()
					rwNothing(t, past.rdb, past.name)
				})
			}
		}
	}
}

// Callers on either side give up before Redis answers: a late grant is given back.
func TestReadWriteCancelledWhileItAsks(t *testing.T) {
	for name, side := range map[string]func(*rlock.RWMutex) *rlock.Mutex{"read": (*rlock.RWMutex).Read, "write": (*rlock.RWMutex).Write} {
		for _, within := range []bool{false, true} {
			redistest.RunVirtual(t, name+map[bool]string{false: "", true: " in a section"}[within], func(t *testing.T) {
				h := newLeavingCallers(t, anyWay)
				rw := h.RWMutex(h.name)
				ctx, unlock := context.Background(), func() error { return nil }
				require.NoError(t, rw.Write().Do(ctx, func(ctx context.Context) error {
					return rw.Read().Do(ctx, func(context.Context) error { return nil })
				}))
				if within {
					ctx, unlock = enter(t, ctx, rw.Write())
				}
				h.proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
				if within && name == "write" { // a re-entry, which has to ask Redis
					rw = h.RWMutex(h.name, rlock.WithLease(time.Hour))
				}
				p := lockAsync(t, lockUnder{side(rw), ctx})
				redistest.Eventually(t, 5*time.Second, func() bool { return h.proxy.Held() == 1 }, "not answered")
				p.cancel()
				require.ErrorIs(t, p.get(t, soon).err, context.Canceled)
				h.proxy.Release()
				require.NoError(t, unlock())
				rwNothing(t, h.rdb, h.name)
			})
		}
	}
}

// lockUnder locks with the values of another ctx.
type lockUnder struct {
	*rlock.Mutex
	ctx context.Context
}

func (l lockUnder) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	return l.Mutex.Lock(valuesFrom{ctx, l.ctx})
}
