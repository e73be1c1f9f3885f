package rlock_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// If a hold cannot be exported, the error gives the reason, and the section goes on.
func TestNotExported(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		second, third := newClient(t, redistest.Start(t).Client(t)), newClient(t, redistest.Start(t).Client(t))
		refuses := func(name string, l rlock.Locker, inner func(context.Context) (context.Context, rlock.UnlockFunc), text string) {
			hold := locked(t, l)
			section, unlockInner := hold.ctx, rlock.UnlockFunc(func() error { return nil })
			if inner != nil {
				section, unlockInner = inner(hold.ctx)
			}
			_, err := rlock.Export(section)
			require.ErrorIs(t, err, rlock.ErrNotExported, name)
			require.ErrorContains(t, err, text)
			require.NotContains(t, err.Error(), "\n")
			require.NoError(t, hold.ctx.Err(), "the section goes on")
			require.NoError(t, unlockInner())
			require.NoError(t, hold.unlock())
		}
		locks := func(m *rlock.Mutex) func(context.Context) (context.Context, rlock.UnlockFunc) {
			return func(ctx context.Context) (context.Context, rlock.UnlockFunc) {
				level := locked(t, under{ctx, m})
				return level.ctx, level.unlock
			}
		}
		outer := func(m *rlock.Mutex) func(context.Context) (context.Context, rlock.UnlockFunc) {
			return func(ctx context.Context) (context.Context, rlock.UnlockFunc) {
				return ctx, locked(t, under{ctx, m}).unlock
			}
		}
		m, rw := b.Mutex(b.name), b.RWMutex(b.name+" rw")
		refuses("fair", b.FairMutex(b.name+" fair"), nil, "in the queue of a fair lock")
		refuses("reader", rw.Read(), nil, "export the write side")
		refuses("upgradeable", b.RWMutex(b.name+" up").Upgradeable(), nil, "export the write side")
		refuses("quorum", rlock.Quorum(m, second.Mutex("q"), third.Mutex("q")), nil, "a quorum is on several servers")
		refuses("all", rlock.All(m, b.Mutex(b.name+" 2")), nil, "together with other locks")
		refuses("all of two servers", rlock.All(m, second.Mutex("q")), nil, "together with other locks")
		refuses("inner level", m, locks(m), "2 levels of the hold are open")
		refuses("outer level", m, outer(m), "2 levels of the hold are open")
		refuses("reader in the writer's section", rw.Write(), outer(rw.Read()), "readers are in the section of the writer")

		s := b.PermitSemaphore(b.name + " permits")
		_, err := s.TrySetPermits(context.Background(), 1)
		require.NoError(t, err)
		require.NoError(t, s.Do(context.Background(), func(ctx context.Context, _ *rlock.Permit) error {
			_, err := rlock.Export(ctx)
			require.ErrorIs(t, err, rlock.ErrNotExported)
			require.ErrorContains(t, err, "permits")
			return ctx.Err()
		}))
		plain := b.Semaphore(b.name + " plain permits")
		_, err = plain.TrySetPermits(context.Background(), 1)
		require.NoError(t, err)
		require.NoError(t, m.Do(context.Background(), func(ctx context.Context) error {
			return plain.Do(ctx, 1, func(ctx context.Context) error {
				_, err := rlock.Export(ctx)
				require.ErrorIs(t, err, rlock.ErrNotExported, "it is not the lock around it that is exported")
				return ctx.Err()
			})
		}))

		_, err = rlock.Export(context.Background())
		require.ErrorIs(t, err, rlock.ErrNotHeld)
		require.ErrorIs(t, err, rlock.ErrNotExported)
		require.EqualError(t, err, "rlock: not exported: the ctx carries no section (use the ctx that Lock returned): rlock: not held")
		require.Panics(t, func() { _, _ = rlock.Export(nil) }) //nolint:staticcheck // that is what is tested
	})
}

// The section of the ctx is exported, and no other: of several locks the innermost, and none after the unlock of its level.
func TestExportedSection(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.Mutex(b.name)
		hold := locked(t, m)
		level := locked(t, under{hold.ctx, m})
		require.NoError(t, level.unlock())
		_, err := rlock.Export(level.ctx)
		require.ErrorIs(t, err, rlock.ErrNotHeld, "it is not the section around it that is exported")
		require.NoError(t, hold.ctx.Err())
		require.NoError(t, adopted(t, b.Client, ticketOf(t, hold.ctx)).unlock())

		outer := locked(t, b.Mutex(b.name+" outer"))
		inner := locked(t, under{outer.ctx, m})
		ticket := ticketOf(t, inner.ctx)
		require.NoError(t, inner.unlock())
		_, err = rlock.Export(inner.ctx)
		require.ErrorIs(t, err, rlock.ErrNotHeld, "the outer one goes on")
		require.NoError(t, outer.ctx.Err())
		ctx, unlock, err := b.Adopt(outer.ctx, ticket)
		require.NoError(t, err, "it can go on under that")
		require.NoError(t, unlock())
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		require.NoError(t, outer.unlock())
	})
}

// A ctx that is done keeps a hold from being exported, unless it is left out; a hold that was lost is not exported at all.
func TestExportAfterTheEnd(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.Mutex(b.name)
		outer, cancel := context.WithCancel(context.Background())
		hold := locked(t, under{outer, m})
		cancel()
		_, err := rlock.Export(hold.ctx)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, rlock.ErrNotExported)
		require.Positive(t, b.fields(t, b.name)[rlock.Owner(hold.ctx)], "the section goes on")
		ticket := ticketOf(t, context.WithoutCancel(hold.ctx))
		require.NoError(t, hold.unlock())
		_, unlock, err := b.Adopt(outer, ticket)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
		require.NoError(t, adopted(t, b.Client, ticket).unlock(), "it was not used")

		for _, known := range []bool{false, true} {
			hold := locked(t, m)
			if known {
				b.loseLock(t, hold.ctx, m)
			} else {
				require.NoError(t, b.do(t, "DEL", b.name).Error())
			}
			_, err := rlock.Export(hold.ctx)
			require.ErrorIs(t, err, rlock.ErrLost)
			require.ErrorIs(t, err, rlock.ErrNotHeld)
			require.NotErrorIs(t, err, rlock.ErrNotExported)
			require.ErrorIs(t, hold.unlock(), rlock.ErrLost)
			require.ErrorIs(t, context.Cause(hold.ctx), rlock.ErrLost)
			redistest.Eventually(t, testTimeout, func() bool { return b.Stats().Holds == 0 }, "the call that has found the loss has ended")
		}
	})
}

// Text that is not a ticket, or is a ticket of a later version, gives an error without that text.
func TestAdoptOfNoTicket(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		good := takenAlong(t, b.Mutex(b.name))
		for text, says := range map[string]string{
			"": "not a text that Export returned", "secret": "not a text that Export returned", good + "!": "not a text that Export returned",
			strings.Replace(good, ".1.", ".2.", 1): "of a later version", strings.Replace(good, ".m.", ".z.", 1): "of a later version",
			strings.Replace(good, ".m.", ".w.", 1): "used before", strings.Replace(good, b.ID(), newClient(t, b.rdb).ID(), 1): "used before",
		} {
			ctx, unlock, err := b.Adopt(context.Background(), text)
			require.ErrorIs(t, err, rlock.ErrTicket, text)
			require.ErrorContains(t, err, says)
			require.NotContains(t, err.Error(), "secret")
			require.Equal(t, context.Background(), ctx)
			require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
		}
		require.NoError(t, adopted(t, b.Client, good).unlock())
		_, _, err := b.Adopt(context.Background(), good, rlock.WithLease(0))
		require.ErrorContains(t, err, "WithLease is 0s")
	})
}
