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

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// The error of each call that changes something says whether it may take effect: ErrPending, or it is safe to call again.
func TestErrorsSayWhetherTheyTakeEffect(t *testing.T) {
	type call func(context.Context) error
	always := func(do func(ctx context.Context, b fixture) error) func(*testing.T, fixture) call {
		return func(_ *testing.T, b fixture) call {
			return func(ctx context.Context) error { return do(ctx, b) }
		}
	}
	calls := map[string]struct {
		goesOn bool                               // in the background, even if it could not be sent yet
		undone bool                               // in the background, so never ErrPending
		begin  func(t *testing.T, b fixture) call // while Redis is well
	}{
		"Release": {goesOn: true, begin: always(func(ctx context.Context, b fixture) error {
			return b.Semaphore(b.name).Release(ctx, 1)
		})},
		"ReleaseIfExists": {goesOn: true, begin: always(func(ctx context.Context, b fixture) error {
			return second(b.Semaphore(b.name).ReleaseIfExists(ctx, 1))
		})},
		"AddPermits": {goesOn: true, begin: always(func(ctx context.Context, b fixture) error {
			return b.Semaphore(b.name).AddPermits(ctx, 1)
		})},
		"TrySetPermits": {begin: always(func(ctx context.Context, b fixture) error {
			return second(b.Semaphore(b.name).TrySetPermits(ctx, 1))
		})},
		"Drain": {undone: true, begin: always(func(ctx context.Context, b fixture) error {
			return second(b.Semaphore(b.name).Drain(ctx))
		})},
		"Acquire": {undone: true, begin: always(func(ctx context.Context, b fixture) error {
			return b.Semaphore(b.name).Acquire(ctx, 1)
		})},
		"SetPermits": {begin: always(func(ctx context.Context, b fixture) error {
			return b.PermitSemaphore(b.name).SetPermits(ctx, 1)
		})},
		"AddPermits of a PermitSemaphore": {goesOn: true, begin: always(func(ctx context.Context, b fixture) error {
			return b.PermitSemaphore(b.name).AddPermits(ctx, 1)
		})},
		"Release by id": {goesOn: true, begin: func(t *testing.T, b fixture) call {
			id := permitOfAnother(t, b.name)
			return func(ctx context.Context) error { return b.PermitSemaphore(b.name).Release(ctx, id) }
		}},
		"UpdateLease": {begin: func(t *testing.T, b fixture) call {
			id := permitOfAnother(t, b.name)
			return func(ctx context.Context) error { return b.PermitSemaphore(b.name).UpdateLease(ctx, id, time.Minute) }
		}},
		"CountDown": {goesOn: true, begin: always(func(ctx context.Context, b fixture) error {
			return b.CountDownLatch(b.name).CountDown(ctx)
		})},
		"TrySetCount": {begin: always(func(ctx context.Context, b fixture) error {
			return second(b.CountDownLatch(b.name).TrySetCount(ctx, 1))
		})},
		"Delete": {begin: always(func(ctx context.Context, b fixture) error {
			return second(b.CountDownLatch(b.name).Delete(ctx))
		})},
		"ForceUnlock": {begin: always(func(ctx context.Context, b fixture) error {
			return second(b.Mutex(b.name).ForceUnlock(ctx))
		})},
		"Lock": {undone: true, begin: always(func(ctx context.Context, b fixture) error {
			return b.Mutex(b.name).Do(ctx, nothing)
		})},
		"unlock": {goesOn: true, begin: func(t *testing.T, b fixture) call {
			_, unlock := enter(t, context.Background(), b.Mutex(b.name))
			return func(context.Context) error { return unlock() }
		}},
		"Permit.Release": {goesOn: true, begin: func(t *testing.T, b fixture) call {
			s := b.PermitSemaphore(b.name)
			require.NoError(t, s.SetPermits(context.Background(), 1))
			_, p, err := s.Acquire(context.Background())
			require.NoError(t, err)
			return func(context.Context) error { return p.Release() }
		}},
		"Export": {goesOn: true, begin: func(t *testing.T, b fixture) call {
			section, unlock := enter(t, context.Background(), b.Mutex(b.name))
			t.Cleanup(func() { _ = unlock() })
			return func(context.Context) error { return second(rlock.Export(section)) }
		}},
	}
	takesCtx := func(what string) bool { return what != "unlock" && what != "Permit.Release" && what != "Export" }
	for what, row := range calls {
		t.Run(what, func(t *testing.T) {
			for _, when := range []string{"ctx is done", "no answer", "no connection", "closed"} {
				redistest.RunVirtual(t, when, func(t *testing.T) {
					proxy := redistest.StartProxy(t, redistest.Shared(t))
					b := newBareFixture(t)
					rdb := redistest.Dial(t, proxy.Addr(), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }) // one connection
					b.Client = newClient(t, rdb, rlock.Options{UnlockTimeout: 200 * time.Millisecond})
					do, want := row.begin(t, b), false
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
							err := rdb.Do(context.Background(), rdb.B().Arbitrary("HGET").Keys(b.name).Args("a").Build()).Error()
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

// permitOfAnother takes a permit in another Client, and returns its id.
func permitOfAnother(t *testing.T, name string) string {
	s := newClient(t, redistest.Dial(t, redistest.Shared(t))).PermitSemaphore(name)
	require.NoError(t, s.SetPermits(context.Background(), 1))
	_, p, err := s.Acquire(context.Background())
	require.NoError(t, err)
	return p.ID()
}
