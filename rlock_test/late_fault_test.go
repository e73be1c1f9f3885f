package rlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// stranded is a process whose calls can reach Redis late: far holds a request, and near cuts the connection, so that the call is repeated
// on another one.
type stranded struct {
	proxied

	far, near *redistest.Proxy
}

func newStranded(t *testing.T, o rlock.Options) *stranded {
	t.Helper()
	r := newProxied(t, o)
	s := &stranded{far: r.proxy, near: redistest.StartProxy(t, r.proxy.Addr())}
	s.fixture, s.other = r.fixture, r.other
	s.Client = newClient(t, redistest.Dial(t, s.near.Addr()), o)
	return s
}

// strand makes a call, and returns its error; the first copy of the call's first script has not reached Redis yet.
func (s *stranded) strand(t *testing.T, call func() error) error {
	t.Helper()
	held := s.far.Held()
	s.far.OnRequest(nthScript(1, redistest.Hold))
	result := async(call)
	redistest.Eventually(t, testTimeout, func() bool { return s.far.Held() == held+1 }, "the call is under way")
	s.near.CutAll()
	return within(t, result, testTimeout)
}

// deliver lets Redis run what has not reached it.
func (s *stranded) deliver() {
	s.far.Release()
	sleep(100 * time.Millisecond)
}

// G1, G5, G6: each request in turn reaches Redis after its repeat: in the section, or in another client's. It changes nothing.
func TestRequestArrivesAfterItsRepeat(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := newStranded(t, rlock.Options{})
		var ctx context.Context
		var unlock, unlockInner rlock.UnlockFunc
		has := func(n int64) {
			t.Helper()
			s.awaitFields(t, s.name, map[string]int64{rlock.Owner(ctx): n})
			s.excluded(t)
			require.NoError(t, ctx.Err())
		}
		lock := func() (err error) { ctx, unlock, err = s.Client.Mutex(s.name).Lock(context.Background()); return err }
		reenter := func() (err error) { _, unlockInner, err = s.forLonger().Lock(ctx); return err }
		require.NoError(t, s.strand(t, lock))
		require.NoError(t, reenter())
		s.deliver() // would set the count to 1
		has(2)
		require.NoError(t, unlockInner())
		has(1)
		require.NoError(t, s.strand(t, reenter))
		s.deliver()
		has(2)
		require.NoError(t, s.strand(t, unlockInner)) // the count follows
		s.deliver()
		has(1)
		require.NoError(t, s.strand(t, unlock))
		other, unlockOther, err := s.other.Mutex(s.name).TryLock(context.Background(), 0)
		require.NoError(t, err)
		s.deliver() // finds another owner
		ctx = other
		has(1)
		require.NoError(t, unlockOther())
		require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
		s.free(t)
	})
}

// G7: a renewal reaches Redis after the unlock. It neither takes the lock nor prolongs another client's hold.
func TestRenewalArrivesAfterTheUnlock(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := newStranded(t, rlock.Options{})
		_, unlock := enter(t, context.Background(), s.Client.Mutex(s.name))
		s.far.OnRequest(nthScript(1, redistest.Hold))
		redistest.Eventually(t, testTimeout, func() bool { return s.far.Held() == 1 }, "the renewal is under way")
		s.near.CutAll()
		require.NoError(t, unlock())
		const lease = 5 * time.Second
		ctx, unlockOther, err := s.other.Mutex(s.name, rlock.WithLease(lease)).TryLock(context.Background(), 0)
		require.NoError(t, err)
		s.deliver()
		require.LessOrEqual(t, s.pttl(t, s.name), lease)
		require.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, s.fields(t, s.name))
		require.NoError(t, unlockOther())
		s.free(t)
	})
}

// G1, G5, G6: the caller of a re-entry has left when the request reaches Redis. The level that it adds lasts until the next change at most,
// and not longer than the hold. Meanwhile a re-entry that needs no command gets in and out at once, and one that does gets its turn (I1).
func TestReentryArrivesAfterItsCallerHasLeft(t *testing.T) {
	for name, over := range map[string]bool{"the hold lasts": false, "the hold is over": true} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			s := newStranded(t, rlock.Options{})
			m := s.Client.Mutex(s.name)
			ctx, unlock := enter(t, context.Background(), m)
			s.far.OnRequest(nthScript(1, redistest.Hold))
			gone, leave := context.WithCancel(ctx)
			first := lockAsync(t, under{gone, s.forLonger()})
			redistest.Eventually(t, testTimeout, func() bool { return s.far.Held() == 1 }, "the re-entry is under way")
			sibling := lockAsync(t, under{ctx, s.forLonger()})
			require.NoError(t, m.Do(ctx, nothing))
			sibling.stillWaits(t)
			leave()
			require.ErrorIs(t, first.get(t, soon).err, rlock.ErrNotAcquired)
			s.near.CutAll()
			got := sibling.gets(t, soon)
			has := func(levels int64) {
				t.Helper()
				s.awaitFields(t, s.name, map[string]int64{rlock.Owner(ctx): levels})
				sleep(longestPause)
				require.Equal(t, map[string]int64{rlock.Owner(ctx): levels}, s.fields(t, s.name))
				require.NoError(t, ctx.Err())
			}
			has(2)
			require.NoError(t, got.unlock())
			has(1)
			if over {
				require.NoError(t, unlock())
				s.deliver()
				s.free(t)
				return
			}
			s.deliver()
			require.Equal(t, map[string]int64{rlock.Owner(ctx): 2}, s.fields(t, s.name), "the late level")
			require.NoError(t, m.Do(ctx, func(context.Context) error {
				sleep(time.Second) // the count in Redis follows what lasts
				return nil
			}))
			has(1)
			require.NoError(t, unlock())
			s.free(t)
		})
	}
}

// G1, G2, G5: an acquire runs, or is answered, after the lease that it asks for would have ended. Lock returns ErrLost, and what it was
// granted is given back. Another client's hold is untouched.
func TestAcquireTakesLongerThanItsLease(t *testing.T) {
	const lease = 2 * time.Second
	for leg, on := range legs {
		for kind, o := range map[string][]rlock.Option{"watchdog": nil, "fixed": {rlock.WithLease(lease)}} {
			for _, leaves := range []bool{false, true} { // whether the caller's ctx can end
				redistest.RunVirtual(t, leg+"/"+kind+map[bool]string{true: "/ctx that ends"}[leaves], func(t *testing.T) {
					r := newProxied(t, rlock.Options{WatchdogTimeout: lease})
					on(r.proxy, nthScript(1, redistest.Hold))
					ctx := context.Background()
					if leaves {
						ctx = t.Context()
					}
					late := lockAsync(t, under{ctx, r.Client.Mutex(r.name, o...)})
					redistest.Eventually(t, testTimeout, func() bool { return r.proxy.Held() == 1 }, "under way")
					sleep(lease)
					unlock := func() error { return nil }
					if leg == "reply" {
						other := lockAsync(t, r.other.Mutex(r.name)).gets(t, lease)
						unlock = func() error { r.held(t, other, 1); return other.unlock() }
					}
					late.stillWaits(t)
					r.proxy.Release()
					got := late.get(t, soon)
					require.ErrorIs(t, got.err, rlock.ErrLost)
					require.ErrorContains(t, got.err, "longer than the lease")
					require.ErrorIs(t, got.unlock(), rlock.ErrNotHeld)
					require.NoError(t, unlock())
					redistest.Eventually(t, lease/2, func() bool { return !r.exists(t, r.name) }, "given back")
					r.free(t)
				})
			}
		}
	}
}

// G5: such a Lock returns once its caller's ctx is done, though Redis does not answer what gives the lock back.
func TestLateGrantIsGivenBackInSilence(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const lease = time.Second
		r := newProxied(t)
		r.proxy.OnReply(nthScript(1, redistest.Hold))
		r.proxy.OnRequest(nthScript(2, redistest.Drop))
		late := lockAsync(t, r.Client.Mutex(r.name, rlock.WithLease(lease)))
		redistest.Eventually(t, testTimeout, func() bool { return r.proxy.Held() > 0 }, "it has run")
		sleep(lease)
		r.proxy.Release()
		sleep(lease / 2)
		late.stillWaits(t)
		left := time.Now()
		late.cancel()
		got := late.get(t, soon)
		require.ErrorIs(t, got.err, rlock.ErrLost)
		requireTook(t, 0, left, got.at)
		redistest.Eventually(t, 2*time.Second, func() bool { return !r.exists(t, r.name) }, "given back")
	})
}
