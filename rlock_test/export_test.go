package rlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// exportable are locks of ofAllKinds whose holds can be exported.
var exportable = []string{"plain", "fenced", "write"}

// ownersOf returns the fields of the hash that are owners.
func (b fixture) ownersOf(t testing.TB) (all []string) {
	t.Helper()
	for field := range b.fieldsOf(t) {
		if field != "mode" {
			all = append(all, field)
		}
	}
	return all
}

// ticketOf exports the hold that ctx carries.
func ticketOf(t testing.TB, ctx context.Context, o ...rlock.ExportOption) (ticket string) {
	t.Helper()
	ticket = answer(rlock.Export(ctx, o...)).ok(t)
	return ticket
}

// adopted adopts a ticket that nobody has used.
func adopted(t testing.TB, c *rlock.Client, ticket string, o ...rlock.Option) (a lockResult) {
	t.Helper()
	a.ctx, a.unlock, a.err = c.Adopt(context.Background(), ticket, o...)
	require.NoError(t, a.err)
	return a
}

// takenAlong takes a lock, exports it, and returns the ticket.
func takenAlong(t testing.TB, m *rlock.Mutex, o ...rlock.ExportOption) string {
	t.Helper()
	hold := locked(t, m)
	ticket := ticketOf(t, hold.ctx, o...)
	require.NoError(t, hold.unlock())
	return ticket
}

// A hold moves to another process, or within the same Client. Its section ends, the lock stays taken throughout, the token rises,
// and after Adopt the hold behaves like any other. The data in Redis does not reveal the ticket.
func TestExport(t *testing.T) {
	for _, kind := range append(exportable, "fenced write") {
		for _, to := range []string{"another process", "the same Client"} {
			runVirtual(t, kind+"/"+to, func(t *testing.T, b fixture) {
				other := newClient(t, b.rdb)
				adopter := map[string]*rlock.Client{"another process": other, "the same Client": b.Client}[to]
				m := ofAllKinds(b.Client, b.name)[kind]
				outer, endOuter := context.WithCancel(t.Context())
				defer endOuter()
				hold := locked(t, under{outer, m})
				owner := rlock.Owner(hold.ctx)
				token, fenced := m.FencingToken(hold.ctx)
				require.Equal(t, strings.HasPrefix(kind, "fenced"), fenced)

				ticket := ticketOf(t, hold.ctx, rlock.WithTicketTime(time.Minute))
				cause := context.Cause(hold.ctx)
				require.ErrorIs(t, cause, rlock.ErrExported)
				require.ErrorIs(t, cause, context.Canceled)
				require.NotErrorIs(t, cause, rlock.ErrLost)
				require.EqualError(t, cause, `rlock: "`+b.name+`": exported`)
				require.NoError(t, outer.Err())
				require.Empty(t, rlock.Owner(hold.ctx))
				_, err := rlock.Export(hold.ctx)
				require.ErrorIs(t, err, rlock.ErrNotHeld, "a section ends once")
				require.ErrorIs(t, err, rlock.ErrNotExported)

				owners := b.ownersOf(t)
				require.Len(t, owners, 1)
				require.True(t, strings.HasPrefix(owners[0], b.ID()+":000"), owners[0])
				require.NotContains(t, owners, owner, "an owner field is never used again")
				require.NotContains(t, ticket, strings.TrimSuffix(strings.TrimPrefix(owners[0], b.ID()+":"), ":write"))
				b.requirePTTL(t, time.Minute)
				for _, c := range []*rlock.Client{b.Client, other} {
					err := ofAllKinds(c, b.name)[kind].TryDo(context.Background(), 0, nothing)
					require.ErrorIs(t, err, rlock.ErrNotAcquired)
					require.ErrorContains(t, err, "exported as "+owners[0])
				}
				info := answer(m.Info(context.Background())).ok(t)
				require.Len(t, info.Holders, 1)
				require.True(t, info.Holders[0].Exported)
				require.NoError(t, hold.unlock(), "unlock after Export does nothing")
				require.NoError(t, hold.unlock())
				require.Equal(t, owners, b.ownersOf(t))

				next := adopted(t, adopter, ticket)
				defer func() { _ = next.unlock() }()
				require.Equal(t, []string{rlock.Owner(next.ctx)}, b.ownersOf(t))
				b.requirePTTL(t, rlock.DefaultWatchdogTimeout) // an ordinary lease
				nextToken, _ := rlock.FencingToken(next.ctx, b.name)
				require.Equal(t, fenced, nextToken > token)
				same, _ := ofAllKinds(adopter, b.name)[kind].FencingToken(next.ctx)
				require.Equal(t, nextToken, same)
				answer(ofAllKinds(adopter, b.name)[kind].IsHeld(next.ctx)).is(t, true)
				_, _, err = other.Adopt(context.Background(), ticket)
				require.ErrorIs(t, err, rlock.ErrTicket)
				require.ErrorContains(t, err, "used before, or its time is over")

				again := ticketOf(t, next.ctx)
				require.NotEqual(t, ticket, again)
				last := adopted(t, other, again)
				require.NoError(t, last.unlock())
				require.ErrorIs(t, last.unlock(), rlock.ErrNotHeld)
				require.ErrorIs(t, context.Cause(last.ctx), context.Canceled)
				require.Empty(t, b.fieldsOf(t))
				require.EqualValues(t, 2, b.Stats().Exported+other.Stats().Exported)
				require.EqualValues(t, 2, b.Stats().Adopted+other.Stats().Adopted)
				require.Zero(t, b.Stats().Holds+other.Stats().Holds)
				require.Zero(t, b.Stats().Lost+other.Stats().Lost)
			})
		}
	}
}

// Do returns nil if its function exported the hold.
func TestExportInADo(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		var ticket string
		require.NoError(t, b.Mutex(b.name).Do(context.Background(), func(ctx context.Context) (err error) {
			ticket, err = rlock.Export(ctx)
			return err
		}))
		require.NoError(t, adopted(t, b.Client, ticket).unlock())
	})
}

// A ticket that nobody adopts expires after its time, by default the watchdog time, and the lock is free. ForceUnlock invalidates a
// ticket as well.
func TestTicketTime(t *testing.T) {
	for _, kind := range exportable {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			const watchdog = 5 * time.Second
			b := newFixture(t, rlock.Options{WatchdogTimeout: watchdog})
			m := ofAllKinds(b.Client, b.name)[kind]
			for lasts, o := range map[time.Duration][]rlock.ExportOption{
				watchdog: nil, 1500 * time.Millisecond: {rlock.WithTicketTime(1500 * time.Millisecond)},
			} {
				ticket := takenAlong(t, m, o...)
				require.LessOrEqual(t, b.pttl(t, b.name), lasts)
				sleep(lasts + time.Millisecond) // Redis keeps a key during its last millisecond
				require.False(t, b.exists(t, b.name))
				_, _, err := b.Adopt(context.Background(), ticket)
				require.ErrorIs(t, err, rlock.ErrTicket)
			}
			ticket := takenAlong(t, m, rlock.WithTicketTime(time.Hour))
			was, err := m.ForceUnlock(context.Background())
			require.NoError(t, err)
			require.True(t, was)
			_, _, err = b.Adopt(context.Background(), ticket)
			require.ErrorIs(t, err, rlock.ErrTicket)
		})
	}
}

// A bad option of an Export is refused, and the section goes on.
func TestBadTicketTime(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		hold := locked(t, newFixture(t).Mutex("x"))
		for _, d := range []time.Duration{0, -1, time.Millisecond - 1} {
			_, err := rlock.Export(hold.ctx, rlock.WithTicketTime(d))
			require.ErrorIs(t, err, rlock.ErrNotExported)
			require.ErrorContains(t, err, fmt.Sprintf("the ticket's time is %v, want at least 1ms", d))
		}
		answer(rlock.Export(hold.ctx, nil)).fails(t, rlock.ErrNotExported)
		require.NoError(t, hold.ctx.Err())
		require.NoError(t, hold.unlock())
	})
}

// After Adopt the lease is an ordinary one, whatever the time of the ticket: it is renewed, and it expires soon if the adopter
// dies. Adopt takes the same options as a handle.
func TestLeaseAfterAnAdopt(t *testing.T) {
	for _, kind := range exportable {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			const watchdog = 4 * time.Second
			r := newProxied(t, rlock.Options{WatchdogTimeout: watchdog})
			m := ofAllKinds(r.other, r.name)[kind]
			ticket := takenAlong(t, m, rlock.WithTicketTime(time.Hour))
			waits := lockAsync(t, m)
			redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 1 }, "the waiter knows that an hour is left")
			sleep(100 * time.Millisecond)
			hold := adopted(t, r.Client, ticket)
			sleep(3 * watchdog / 2)
			require.NoError(t, hold.ctx.Err(), "the hold is renewed")
			waits.stillWaits(t)
			r.proxy.BlackHole(true) // the adopter dies
			died := time.Now()
			next := waits.gets(t, testTimeout)
			requireTookAtMost(t, 2*watchdog, died, next.at) // the waiter does not sleep for the ticket's time
			requireLostBy(t, hold.ctx, next.at)
			require.NoError(t, next.unlock())

			short := adopted(t, r.other, takenAlong(t, m, rlock.WithTicketTime(time.Hour)), rlock.WithLease(2*time.Second))
			awaitEnd(t, short.ctx)
			require.ErrorIs(t, context.Cause(short.ctx), rlock.ErrLost)
			require.ErrorIs(t, short.unlock(), rlock.ErrLost)
		})
	}
}

// Close and Shutdown of the Client that exported do not end the ticket; a closed Client exports and adopts nothing.
func TestTicketOutlivesItsClient(t *testing.T) {
	for name, end := range map[string]func(*rlock.Client) error{
		"Close":    func(c *rlock.Client) error { c.Close(); return nil },
		"Shutdown": func(c *rlock.Client) error { return c.Shutdown(context.Background()) },
	} {
		runVirtual(t, name, func(t *testing.T, b fixture) {
			exporter := newClient(t, b.rdb)
			ticket := takenAlong(t, exporter.FencedMutex(b.name))
			open := locked(t, exporter.Mutex(b.name+" 2"))
			if name == "Shutdown" {
				require.NoError(t, open.unlock())
			}
			require.NoError(t, end(exporter))
			if name == "Close" {
				_, err := rlock.Export(context.WithoutCancel(open.ctx))
				require.ErrorIs(t, err, rlock.ErrClosed)
				require.ErrorIs(t, err, rlock.ErrNotExported)
				require.NoError(t, open.unlock())
			}
			_, _, err := exporter.Adopt(context.Background(), ticket)
			require.ErrorIs(t, err, rlock.ErrClosed)
			require.ErrorContains(t, b.Mutex(b.name).TryDo(context.Background(), 0, nothing), "exported as")
			require.NoError(t, adopted(t, b.Client, ticket).unlock())
		})
	}
}

// A process may reserve fencing tokens for its waiters in advance. The token after an Adopt is above all reserved ones.
func TestTokenAfterAReserve(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		m := b.FencedMutex(b.name)
		hold := locked(t, m)
		var line []pendingLock
		for i := range 9 {
			line = append(line, lockAsync(t, m))
			redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == i+1 }, "they wait in order")
		}
		require.NoError(t, hold.unlock())
		line[0].getAndUnlock(t, testTimeout)
		third := line[1].gets(t, testTimeout)
		token, _ := rlock.FencingToken(third.ctx, b.name)
		ticket := ticketOf(t, third.ctx)
		reserved := answer(b.do(t, "GET", "redisson_lock_token:{"+b.name+"}").AsInt64()).ok(t)
		require.GreaterOrEqual(t, reserved, token)
		next := adopted(t, b.Client, ticket)
		last, _ := rlock.FencingToken(next.ctx, b.name)
		require.Greater(t, last, reserved)
		require.NoError(t, next.unlock())
		for _, p := range line[2:] {
			a := p.gets(t, testTimeout)
			token, _ := rlock.FencingToken(a.ctx, b.name)
			require.Greater(t, token, last)
			last = token
			require.NoError(t, a.unlock())
		}
	})
}

// A Trace reports the Export and the Adopt.
func TestExportIsTraced(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		var mu sync.Mutex
		var acquired []rlock.AcquiredInfo
		var released []rlock.ReleasedInfo
		b := newFixture(t, rlock.Options{Trace: &rlock.Trace{
			Acquired: func(_ context.Context, i rlock.AcquiredInfo) { mu.Lock(); acquired = append(acquired, i); mu.Unlock() },
			Released: func(_ context.Context, i rlock.ReleasedInfo) { mu.Lock(); released = append(released, i); mu.Unlock() },
		}})
		require.NoError(t, adopted(t, b.Client, takenAlong(t, b.FencedMutex(b.name))).unlock())
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, acquired, 2)
		require.Equal(t, rlock.PathFree, acquired[0].Path)
		require.Equal(t, rlock.PathAdopted, acquired[1].Path)
		require.Equal(t, "adopted", acquired[1].Path.String())
		require.Equal(t, "fenced", acquired[1].Kind)
		require.Len(t, released, 2)
		require.True(t, released[0].Exported)
		require.NoError(t, released[0].Err)
		require.False(t, released[1].Exported)
	})
}

// If a hold cannot be exported, the error gives the reason, and the section goes on.
func TestNotExported(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
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
				answer(rlock.Export(ctx)).fails(t, rlock.ErrNotExported, "it is not the lock around it that is exported")
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
	virtual(t, func(t *testing.T, b fixture) {
		m := b.Mutex(b.name)
		hold := locked(t, m)
		level := locked(t, under{hold.ctx, m})
		require.NoError(t, level.unlock())
		answer(rlock.Export(level.ctx)).fails(t, rlock.ErrNotHeld, "it is not the section around it that is exported")
		require.NoError(t, hold.ctx.Err())
		require.NoError(t, adopted(t, b.Client, ticketOf(t, hold.ctx)).unlock())

		outer := locked(t, b.Mutex(b.name+" outer"))
		inner := locked(t, under{outer.ctx, m})
		ticket := ticketOf(t, inner.ctx)
		require.NoError(t, inner.unlock())
		answer(rlock.Export(inner.ctx)).fails(t, rlock.ErrNotHeld, "the outer one goes on")
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
	virtual(t, func(t *testing.T, b fixture) {
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
	virtual(t, func(t *testing.T, b fixture) {
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
