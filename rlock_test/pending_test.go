package rlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// The error of each call that changes something says whether it may take effect: ErrPending, or it is safe to call again.
func TestErrorsSayWhetherTheyTakeEffect(t *testing.T) {
	redistest.Parallel(t)
	type call func(context.Context) error
	without := func(_ any, err error) error { return err }
	calls := map[string]struct {
		goesOn bool                                            // in the background, even if it could not be sent yet
		undone bool                                            // in the background, so never ErrPending
		begin  func(t *testing.T, b fixture, name string) call // while Redis is well
	}{
		"Release": {goesOn: true, begin: func(t *testing.T, b fixture, name string) call {
			s := b.Semaphore(name)
			return func(ctx context.Context) error { return s.Release(ctx, 1) }
		}},
		"ReleaseIfExists": {goesOn: true, begin: func(t *testing.T, b fixture, name string) call {
			s := b.Semaphore(name)
			return func(ctx context.Context) error { return without(s.ReleaseIfExists(ctx, 1)) }
		}},
		"AddPermits": {goesOn: true, begin: func(t *testing.T, b fixture, name string) call {
			s := b.Semaphore(name)
			return func(ctx context.Context) error { return s.AddPermits(ctx, 1) }
		}},
		"TrySetPermits": {begin: func(t *testing.T, b fixture, name string) call {
			s := b.Semaphore(name)
			return func(ctx context.Context) error { return without(s.TrySetPermits(ctx, 1)) }
		}},
		"Drain": {undone: true, begin: func(t *testing.T, b fixture, name string) call {
			s := b.Semaphore(name)
			return func(ctx context.Context) error { return without(s.Drain(ctx)) }
		}},
		"Acquire": {undone: true, begin: func(t *testing.T, b fixture, name string) call {
			s := b.Semaphore(name)
			return func(ctx context.Context) error { return s.Acquire(ctx, 1) }
		}},
		"SetPermits": {begin: func(t *testing.T, b fixture, name string) call {
			s := b.PermitSemaphore(name)
			return func(ctx context.Context) error { return s.SetPermits(ctx, 1) }
		}},
		"AddPermits of a PermitSemaphore": {goesOn: true, begin: func(t *testing.T, b fixture, name string) call {
			s := b.PermitSemaphore(name)
			return func(ctx context.Context) error { return s.AddPermits(ctx, 1) }
		}},
		"Release by id": {goesOn: true, begin: func(t *testing.T, b fixture, name string) call {
			s, id := b.PermitSemaphore(name), permitOfAnother(t, name)
			return func(ctx context.Context) error { return s.Release(ctx, id) }
		}},
		"UpdateLease": {begin: func(t *testing.T, b fixture, name string) call {
			s, id := b.PermitSemaphore(name), permitOfAnother(t, name)
			return func(ctx context.Context) error { return s.UpdateLease(ctx, id, time.Minute) }
		}},
		"CountDown": {goesOn: true, begin: func(t *testing.T, b fixture, name string) call {
			return b.CountDownLatch(name).CountDown
		}},
		"TrySetCount": {undone: true, begin: func(t *testing.T, b fixture, name string) call {
			l := b.CountDownLatch(name)
			return func(ctx context.Context) error { return without(l.TrySetCount(ctx, 1)) }
		}},
		"Delete": {begin: func(t *testing.T, b fixture, name string) call {
			l := b.CountDownLatch(name)
			return func(ctx context.Context) error { return without(l.Delete(ctx)) }
		}},
		"ForceUnlock": {begin: func(t *testing.T, b fixture, name string) call {
			m := b.Mutex(name)
			return func(ctx context.Context) error { return without(m.ForceUnlock(ctx)) }
		}},
		"Lock": {undone: true, begin: func(t *testing.T, b fixture, name string) call {
			m := b.Mutex(name)
			return func(ctx context.Context) error {
				_, unlock, err := m.Lock(ctx)
				return errors.Join(err, discard(unlock, err == nil))
			}
		}},
		"unlock": {goesOn: true, begin: func(t *testing.T, b fixture, name string) call {
			_, unlock, err := b.Mutex(name).Lock(context.Background())
			require.NoError(t, err)
			return func(context.Context) error { return unlock() }
		}},
		"Permit.Release": {goesOn: true, begin: func(t *testing.T, b fixture, name string) call {
			s := b.PermitSemaphore(name)
			require.NoError(t, s.SetPermits(context.Background(), 1))
			_, p, err := s.Acquire(context.Background())
			require.NoError(t, err)
			return func(context.Context) error { return p.Release() }
		}},
		"Export": {goesOn: true, begin: func(t *testing.T, b fixture, name string) call {
			section, unlock, err := b.Mutex(name).Lock(context.Background())
			require.NoError(t, err)
			t.Cleanup(func() { _ = unlock() })
			return func(context.Context) error { return without(rlock.Export(section)) }
		}},
	}
	takesCtx := func(what string) bool { return what != "unlock" && what != "Permit.Release" && what != "Export" }
	for what, row := range calls {
		t.Run(what, func(t *testing.T) {
			redistest.Parallel(t)
			for _, when := range []string{"ctx is done", "no answer", "no connection", "closed"} {
				redistest.RunVirtual(t, when, func(t *testing.T) {
					proxy := redistest.StartProxy(t, redistest.Shared(t))
					b := newBareFixture(t)
					rdb := redistest.Dial(t, proxy.Addr(), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }) // one connection
					b.Client = newClient(t, rdb, rlock.Options{UnlockTimeout: 200 * time.Millisecond})
					name := b.name
					do, want := row.begin(t, b, name), false
					ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
					defer cancel()
					switch when {
					case "ctx is done":
						if cancel(); !takesCtx(what) {
							return
						}
					case "no answer":
						proxy.OnRequest(func(cmd []string) redistest.Action {
							if isScript(cmd) {
								return redistest.Hold
							}
							return redistest.Pass
						})
						defer proxy.Release()
						want = !row.undone
					case "no connection":
						if what != "CountDown" && what != "Drain" && what != "ForceUnlock" && what != "unlock" {
							return // one of each sort, for they wait for three seconds
						}
						proxy.Refuse(true)
						proxy.CutAll()
						redistest.Eventually(t, testTimeout, func() bool { // a call on a connection that was cut may have run
							err := rdb.Do(context.Background(), rdb.B().Arbitrary("HGET").Keys(name).Args("a").Build()).Error()
							return err != nil && strings.Contains(err.Error(), "refused")
						}, "the connections are gone")
						defer proxy.Refuse(false)
						want, ctx = row.goesOn, context.Background()
					case "closed":
						if b.Close(); row.goesOn && what != "CountDown" && what != "AddPermits" && what != "AddPermits of a PermitSemaphore" {
							return // it works after Close
						}
					}
					err := do(ctx)
					require.Error(t, err)
					assert.Equal(t, want, errors.Is(err, rlock.ErrPending), "%v", err)
					if when == "ctx is done" && !row.undone {
						assert.Contains(t, err.Error(), "nothing was sent")
					}
				})
			}
		})
	}
}

// discard unlocks what a call that should fail has taken.
func discard(unlock rlock.UnlockFunc, taken bool) error {
	if taken {
		return unlock()
	}
	return nil
}

// permitOfAnother takes a permit in another Client, and returns its id.
func permitOfAnother(t *testing.T, name string) string {
	s := newClient(t, redistest.Dial(t, redistest.Shared(t))).PermitSemaphore(name)
	require.NoError(t, s.SetPermits(context.Background(), 1))
	_, p, err := s.Acquire(context.Background())
	require.NoError(t, err)
	return p.ID()
}
