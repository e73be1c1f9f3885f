package rlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// A hash with application data is not a lock: Lock fails at once instead of waiting, and ForceUnlock does not delete it.
func TestBusinessHashIsNoLock(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		require.NoError(t, b.do(t, "HSET", b.name, "customer", "17").Error())
		m := b.Mutex(b.name)
		_, _, err := m.Lock(context.Background())
		require.EqualError(t, err, `rlock: "`+b.name+`": acquire script: not a lock: the key holds a hash with the field "customer"; `+
			`give the lock a name that no other data uses`)
		_, _, err = m.TryLock(context.Background(), 0)
		require.ErrorContains(t, err, "customer")
		require.NotErrorIs(t, err, rlock.ErrNotAcquired)
		_, err = m.ForceUnlock(context.Background())
		require.ErrorContains(t, err, "customer")
		answer(b.do(t, "HGET", b.name, "customer").ToString()).is(t, "17")
		b.do(t, "DEL", b.name)
	})
}

// A refusal names the lock, the holder and the remaining time. It explains re-entry if the holder's Lock got the same ctx as the refused call, or a parent of it. Any other holder of the
// same Client is reported as an unrelated holder.
func TestRefusalOfOneself(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		var quorum []rlock.Locker
		for range 3 {
			quorum = append(quorum, newClient(t, redistest.Start(t).Client(t)).Mutex(b.name))
		}
		rw := b.RWMutex(b.name + ":rw")
		ctx := t.Context()
		value := context.WithValue(ctx, ctxLabel{}, "A")
		timed, cancel := context.WithTimeout(value, time.Hour)
		defer cancel()
		for kind, l := range map[string][2]rlock.Locker{
			"mutex": {b.Mutex(b.name), b.Mutex(b.name)}, "fenced": {b.FencedMutex(b.name), b.Mutex(b.name)},
			"fair": {b.FairMutex(b.name), b.FairMutex(b.name)}, "write": {rw.Write(), rw.Write()}, "readers": {rw.Read(), rw.Write()},
			"upgradeable": {rw.Upgradeable(), rw.Upgradeable()},
			"all":         {rlock.All(b.Mutex(b.name), b.FencedMutex(b.name+":2")), b.Mutex(b.name + ":2")},
			"in all":      {b.Mutex(b.name), rlock.All(b.Mutex(b.name), b.Mutex(b.name+":2"))},
			"quorum":      {rlock.Quorum(quorum...), rlock.Quorum(quorum...)},
		} {
			for _, row := range []struct {
				outer, inner context.Context
				self         bool
			}{
				{ctx, ctx, true}, {ctx, value, true}, {ctx, timed, true}, {value, timed, true},
				{context.Background(), context.Background(), true},
				{timed, ctx, false}, {timed, value, false}, {value, context.WithValue(ctx, ctxLabel{}, "B"), false},
				{context.Background(), ctx, false}, {context.TODO(), context.Background(), false}, {ctx, context.Background(), false},
			} {
				hold := locked(t, under{row.outer, l[0]})
				level := locked(t, under{hold.ctx, l[0]}) // makes no difference
				require.NoError(t, level.unlock())
				require.Error(t, level.ctx.Err())
				_, _, err := l[1].TryLock(row.inner, 0)
				var refusal *rlock.NotAcquiredError
				require.ErrorAs(t, err, &refusal)
				require.Contains(t, l[1].Name(), refusal.Name)
				require.NotEmpty(t, refusal.Holder)
				require.ErrorContains(t, err, ", with "+refusal.TTL.Round(time.Millisecond).String()+" left")
				said := "held by " + refusal.Holder
				if row.self {
					said = "held by this client as " + refusal.Holder
				}
				require.ErrorContains(t, err, said, "%s: %v in %v", kind, row.inner, row.outer)
				require.Equal(t, row.self, strings.Contains(err.Error(), "use the ctx that its Lock returned"), err)
				require.NoError(t, hold.unlock())
			}
		}
	})
}

// errors.Is matches only errors about the lock of the call. If the ctx ended because another lock was lost or another Client
// closed, only the text says so.
func TestErrorsAreAboutTheirLock(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		outer := locked(t, b.Mutex(b.name))
		b.loseLock(t, outer.ctx, b.Mutex(b.name))
		_, _, err := b.Mutex(b.name + ":inner").Lock(outer.ctx)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, rlock.ErrLost)
		require.ErrorContains(t, err, `"`+b.name+`": lost: `)
		require.ErrorIs(t, outer.unlock(), rlock.ErrLost)

		second := newClient(t, b.rdb)
		outer = locked(t, second.Mutex(b.name))
		second.Close()
		_, _, err = b.Mutex(b.name + ":inner").Lock(outer.ctx)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.NotErrorIs(t, err, rlock.ErrClosed)
		require.ErrorContains(t, err, "client closed")
		require.NoError(t, outer.unlock())
	})
}

// The error of a loss gives the reason: the error of the last renewal, or the end of a fixed lease.
func TestLossSaysWhy(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := newClient(t, s.Client(t), rlock.Options{WatchdogTimeout: 2 * time.Second})
		renewed := locked(t, c.Mutex("renewed"))
		fixed := locked(t, c.Mutex("fixed", rlock.WithLease(time.Second)))
		owner := rlock.Owner(renewed.ctx)
		s.Stop()
		awaitEnd(t, renewed.ctx)
		var loss *rlock.LostError
		require.ErrorAs(t, context.Cause(renewed.ctx), &loss)
		require.Equal(t, rlock.LostExpired, loss.Reason)
		require.Equal(t, owner, loss.Owner)
		requireTook(t, 0, loss.Since, time.Now())
		require.Regexp(t, `^rlock: "renewed": lost: not renewed in time: .*connection refused$`, loss.Error())
		awaitEnd(t, fixed.ctx)
		require.EqualError(t, context.Cause(fixed.ctx), `rlock: "fixed": lost: its lease of fixed length ended`)
		for _, err := range []error{renewed.unlock(), fixed.unlock()} {
			require.ErrorIs(t, err, rlock.ErrLost)
			require.ErrorIs(t, err, rlock.ErrNotHeld)
			require.Equal(t, 1, strings.Count(err.Error(), "rlock: "), err)
			require.NotContains(t, err.Error(), "not held", "ErrLost already implies ErrNotHeld")
		}
	})
}

// If unlock is the first to find that the lock was lost, the cause of the section's ctx also reports the loss.
func TestUnlockThatFindsTheLoss(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		hold := locked(t, b.Mutex(b.name))
		b.do(t, "DEL", b.name)
		require.ErrorIs(t, hold.unlock(), rlock.ErrLost)
		require.ErrorIs(t, context.Cause(hold.ctx), rlock.ErrLost)
		ctx := lockAndUnlock(t, b.Mutex(b.name))
		require.EqualError(t, context.Cause(ctx), `rlock: "`+b.name+`": unlocked`)
	})
}

// Do reports a loss once, however deep the nesting, and ErrClosed if Close ended the section.
func TestWhatDoReturns(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		m, ctx := b.Mutex(b.name), context.Background()
		mine := errors.New("mine")
		err := m.Do(ctx, func(ctx context.Context) error {
			return m.Do(ctx, func(ctx context.Context) error {
				return m.Do(ctx, func(context.Context) error { return b.do(t, "DEL", b.name).Error() })
			})
		})
		require.ErrorIs(t, err, rlock.ErrLost)
		require.Equal(t, 1, strings.Count(err.Error(), "lost"), err)
		require.NotContains(t, err.Error(), "\n")

		err = m.Do(ctx, func(context.Context) error {
			b.do(t, "DEL", b.name)
			return mine
		})
		require.ErrorIs(t, err, rlock.ErrLost)
		require.ErrorIs(t, err, mine)
		require.NotContains(t, err.Error(), "\n")

		c := newClient(t, b.rdb)
		err = c.Mutex(b.name).Do(ctx, func(ctx context.Context) error {
			c.Close()
			<-ctx.Done()
			return ctx.Err()
		})
		require.ErrorIs(t, err, rlock.ErrClosed)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, rlock.ErrLost)
		require.False(t, b.exists(t, b.name), "unlock works after Close")
	})
}

// A managed server that moves slots may fail a script halfway, before any write. Lock and unlock retry the call.
func TestNonLocalKeyPasses(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, _ := behindProxy(t, anyWay)
		const said = "ERR Script attempted to access a non local key in a cluster node"
		proxy.OnRequest(nthScript(1, redistest.Fail(said)))
		hold := locked(t, c.Mutex("x"))
		proxy.OnRequest(nthScript(1, redistest.Fail(said)))
		require.NoError(t, hold.unlock())
	})
}

// Mistakes in the calling program panic with a message that names the mistake.
func TestMisusePanics(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		m := b.Mutex(b.name)
		var none *rlock.Client
		for want, f := range map[string]func(){
			"rlock: the ctx is nil":        func() { _, _, _ = m.Lock(nil) },  //nolint:staticcheck // on purpose
			"rlock: the ctx is nil ":       func() { _, _ = m.IsLocked(nil) }, //nolint:staticcheck // on purpose
			"rlock: Do of a nil function":  func() { _ = m.Do(context.Background(), nil) },
			"rlock: Do of a nil function ": func() { _ = m.TryDo(context.Background(), 0, nil) },
			"rlock: DoValue of a nil Locker or function": func() {
				_, _ = rlock.DoValue(context.Background(), nil, func(context.Context) (int, error) { return 0, nil })
			},
			"rlock: DoValue of a nil Locker or function ":   func() { _, _ = rlock.DoValue[int](context.Background(), m, nil) },
			"rlock: a Mutex that was not made by a Client":  func() { _, _, _ = new(rlock.Mutex).Lock(context.Background()) },
			"rlock: a Mutex that was not made by a Client ": func() { _, _, _ = new(rlock.Mutex).TryLock(context.Background(), 0) },
			"rlock: an Upgradeable that was not made by an RWMutex": func() {
				_, _, _ = (*rlock.Upgradeable)(nil).Lock(context.Background())
			},
			"rlock: an Upgradeable that was not made by an RWMutex ":  func() { new(rlock.Upgradeable).Name() },
			"rlock: an Upgradeable that was not made by an RWMutex  ": func() { _, _, _ = new(rlock.Upgradeable).Upgrade(context.Background()) },
			"rlock: a Client that was not made by New":                func() { none.Mutex("x") },
			"rlock: a Client that was not made by New ":               func() { none.Close() },
			"rlock: a Client that was not made by New  ":              func() { new(rlock.Client).FencedMutex("x") },
			"rlock: the ctx is nil  ":                                 func() { rlock.Owner(nil) },             //nolint:staticcheck // on purpose
			"rlock: the ctx is nil   ":                                func() { rlock.FencingToken(nil, "x") }, //nolint:staticcheck // on purpose
		} {
			assert.PanicsWithValue(t, strings.TrimSpace(want), f)
		}
	})
}

// Libraries that write other owners than Redisson into its format hold the lock as anybody else, also in front of a waiter in the queue.
func TestHoldOfAnotherLibrary(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		for _, owner := range []string{
			"ddcb083c-ff83-4c63-bed5-22fec267a194:a44594da-05bd-40a1-9ba6-5d8634fcd918", "0106aa02509318a5e723fa3e04efb3c7:1",
			"64b9b232-fdb6-456d-8cc4-5672a16f7c9c",
		} {
			b := newFixture(t)
			hold := func() {
				t.Helper()
				require.NoError(t, b.do(t, "HSET", b.name, owner, "1").Error())
				require.NoError(t, b.do(t, "PEXPIRE", b.name, "60000").Error())
			}
			free := func() {
				t.Helper()
				require.NoError(t, b.do(t, "DEL", b.name).Error())
			}
			hold()
			for _, m := range []*rlock.Mutex{b.Mutex(b.name), b.FairMutex(b.name), b.RWMutex(b.name).Read(), b.RWMutex(b.name).Write()} {
				_, _, err := m.TryLock(t.Context(), 0)
				require.ErrorIs(t, err, rlock.ErrNotAcquired)
				var refused *rlock.NotAcquiredError
				require.ErrorAs(t, err, &refused)
				require.Equal(t, owner, refused.Holder)
			}
			answer(b.Mutex(b.name).IsLocked(t.Context())).is(t, true)
			info := answer(b.Mutex(b.name).Info(t.Context())).ok(t)
			require.Equal(t, []rlock.Holder{{Owner: owner, Depth: 1}}, info.Holders)

			waiter := lockAsync(t, b.Mutex(b.name))
			queued := func() bool {
				info, err := b.Mutex(b.name).Info(t.Context())
				return err == nil && len(info.Queue) == 1
			}
			redistest.Eventually(t, testTimeout, queued, "it waits")
			free()
			hold() // the other library was faster than the waiter
			publish := func() {
				t.Helper()
				require.NoError(t, b.do(t, "PUBLISH", "redisson_lock__channel:{"+b.name+"}", "0").Error())
			}
			publish()
			redistest.Eventually(t, testTimeout, queued, "it keeps its place")
			free()
			publish()
			waiter.getAndUnlock(t, testTimeout)
		}
	})
}

// The unlock that comes with an error names the lock once, and the reason: the Lock failed.
func TestUnlockOfALockThatFailed(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		m, x := b.Mutex(""), b.Mutex("x")
		for name, l := range map[string]rlock.Locker{
			`"": not held: its Lock failed`: m, `"All(, x)": not held: its Lock failed`: rlock.All(m, x),
			`"quorum": not held: its Lock failed`: rlock.Quorum(b.Mutex("quorum"), x, x), `"pool": not held: its Lock failed`: b.Semaphore("pool").Locker(1),
			`"fenced": not held: its Lock failed`: b.FencedMutex("fenced"), `"fair": not held: its Lock failed`: b.FairMutex("fair"),
			`"read": not held: its Lock failed`: b.RWMutex("read").Read(), `"write": not held: its Lock failed`: b.RWMutex("write").Write(),
			`"upgrade": not held: its Lock failed`:    b.RWMutex("upgrade").Upgradeable(),
			`"permits": not held: its Acquire failed`: b.PermitSemaphore("permits").Locker(1),
		} {
			_, unlock, err := l.Lock(canceled())
			require.Error(t, err)
			err = unlock()
			require.ErrorIs(t, err, rlock.ErrNotHeld)
			require.EqualError(t, err, "rlock: "+name)
		}
		_, p, err := b.PermitSemaphore("").Acquire(t.Context())
		require.Error(t, err)
		require.EqualError(t, p.Release(), `rlock: "": not held: its Acquire failed`)
		_, unlock, err := b.Client.Adopt(t.Context(), "no ticket")
		require.ErrorIs(t, err, rlock.ErrTicket)
		require.EqualError(t, unlock(), "rlock: not held: Adopt failed")
	})
}
