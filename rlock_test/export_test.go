package rlock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// exportable returns the locks whose holds can be exported.
func exportable(c *rlock.Client, name string, o ...rlock.Option) map[string]*rlock.Mutex {
	return map[string]*rlock.Mutex{
		"plain": c.Mutex(name, o...), "fenced": c.FencedMutex(name, o...),
		"write": c.RWMutex(name, o...).Write(), "fenced write": c.FencedRWMutex(name, o...).Write(),
	}
}

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

// takenAlong takes a lock, exports it, and returns the ticket.
func takenAlong(t testing.TB, m *rlock.Mutex, o ...rlock.ExportOption) string {
	t.Helper()
	ctx, unlock, err := m.Lock(context.Background())
	require.NoError(t, err)
	ticket, err := rlock.Export(ctx, o...)
	require.NoError(t, err)
	require.NoError(t, unlock())
	return ticket
}

// A hold moves to another process, or within the same Client. Its section ends, the lock stays taken throughout, the token rises,
// and after Adopt the hold behaves like any other. The data in Redis does not reveal the ticket.
func TestExport(t *testing.T) {
	for _, kind := range []string{"plain", "fenced", "write", "fenced write"} {
		for _, to := range []string{"another process", "the same Client"} {
			redistest.RunVirtual(t, kind+"/"+to, func(t *testing.T) {
				b := newFixture(t)
				other := newClient(t, b.rdb)
				adopter := map[string]*rlock.Client{"another process": other, "the same Client": b.Client}[to]
				m := exportable(b.Client, b.name)[kind]
				outer, endOuter := context.WithCancel(t.Context())
				defer endOuter()
				ctx, unlock, err := m.Lock(outer)
				require.NoError(t, err)
				owner := rlock.Owner(ctx)
				token, fenced := m.FencingToken(ctx)
				require.Equal(t, strings.HasPrefix(kind, "fenced"), fenced)

				ticket, err := rlock.Export(ctx, rlock.WithTicketTime(time.Minute))
				require.NoError(t, err)
				require.ErrorIs(t, ctx.Err(), context.Canceled)
				cause := context.Cause(ctx)
				require.ErrorIs(t, cause, rlock.ErrExported)
				require.ErrorIs(t, cause, context.Canceled)
				require.NotErrorIs(t, cause, rlock.ErrLost)
				require.EqualError(t, cause, `rlock: "`+b.name+`": exported`)
				require.NoError(t, outer.Err())
				require.Empty(t, rlock.Owner(ctx))
				_, err = rlock.Export(ctx)
				require.ErrorIs(t, err, rlock.ErrNotHeld, "a section ends once")
				require.ErrorIs(t, err, rlock.ErrNotExported)

				owners := b.ownersOf(t)
				require.Len(t, owners, 1)
				require.True(t, strings.HasPrefix(owners[0], b.ID()+":000"), owners[0])
				require.NotContains(t, owners, owner, "an owner field is never used again")
				require.NotContains(t, ticket, strings.TrimSuffix(strings.TrimPrefix(owners[0], b.ID()+":"), ":write"))
				require.LessOrEqual(t, b.pttl(t, b.name), time.Minute)
				require.Greater(t, b.pttl(t, b.name), 30*time.Second)
				for _, c := range []*rlock.Client{b.Client, other} {
					_, _, err = exportable(c, b.name)[kind].TryLock(context.Background(), 0)
					require.ErrorIs(t, err, rlock.ErrNotAcquired)
					require.ErrorContains(t, err, "exported as "+owners[0])
				}
				info, err := m.Info(context.Background())
				require.NoError(t, err)
				require.Len(t, info.Holders, 1)
				require.True(t, info.Holders[0].Exported)

				require.NoError(t, unlock(), "unlock after Export does nothing")
				require.NoError(t, unlock())
				require.Equal(t, owners, b.ownersOf(t))

				ctx, unlock, err = adopter.Adopt(context.Background(), ticket)
				require.NoError(t, err)
				defer func() { _ = unlock() }()
				require.Equal(t, []string{rlock.Owner(ctx)}, b.ownersOf(t))
				require.LessOrEqual(t, b.pttl(t, b.name), 30*time.Second, "the hold has an ordinary lease")
				next, _ := rlock.FencingToken(ctx, b.name)
				require.Equal(t, fenced, next > token)
				same, _ := exportable(adopter, b.name)[kind].FencingToken(ctx)
				require.Equal(t, next, same)
				held, err := exportable(adopter, b.name)[kind].IsHeld(ctx)
				require.NoError(t, err)
				require.True(t, held)
				for _, c := range []*rlock.Client{b.Client, other} {
					_, again, err := c.Adopt(context.Background(), ticket)
					require.ErrorIs(t, err, rlock.ErrTicket)
					require.ErrorContains(t, err, "used before, or its time is over")
					require.ErrorIs(t, again(), rlock.ErrNotHeld)
				}
				require.NoError(t, ctx.Err())

				again, err := rlock.Export(ctx)
				require.NoError(t, err, "an adopted hold can be exported again")
				require.NotEqual(t, ticket, again)
				ctx, unlock, err = other.Adopt(context.Background(), again)
				require.NoError(t, err)
				require.NoError(t, unlock())
				require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
				require.ErrorIs(t, context.Cause(ctx), context.Canceled)
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
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		var ticket string
		require.NoError(t, b.Mutex(b.name).Do(context.Background(), func(ctx context.Context) (err error) {
			ticket, err = rlock.Export(ctx)
			return err
		}))
		_, unlock, err := b.Adopt(context.Background(), ticket)
		require.NoError(t, err)
		require.NoError(t, unlock())
	})
}

// A ticket that nobody adopts expires after its time, by default the watchdog time, and the lock is free. ForceUnlock invalidates a
// ticket as well.
func TestTicketTime(t *testing.T) {
	for _, kind := range []string{"plain", "fenced", "write"} {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			b := newFixture(t, rlock.Options{WatchdogTimeout: 5 * time.Second})
			m := exportable(b.Client, b.name)[kind]
			for _, o := range [][]rlock.ExportOption{nil, {rlock.WithTicketTime(1500 * time.Millisecond)}} {
				ticket := takenAlong(t, m, o...)
				left := b.pttl(t, b.name)
				require.LessOrEqual(t, left, 5*time.Second)
				sleep(left)
				redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) }, "the ticket expires")
				_, _, err := b.Adopt(context.Background(), ticket)
				require.ErrorIs(t, err, rlock.ErrTicket)
			}
			ticket := takenAlong(t, m, rlock.WithTicketTime(time.Hour))
			was, err := m.ForceUnlock(context.Background())
			require.NoError(t, err)
			require.True(t, was)
			_, _, err = b.Adopt(context.Background(), ticket)
			require.ErrorIs(t, err, rlock.ErrTicket)

			ctx, unlock, err := m.Lock(context.Background())
			require.NoError(t, err)
			for _, d := range []time.Duration{0, -1, time.Millisecond - 1} {
				_, err = rlock.Export(ctx, rlock.WithTicketTime(d))
				require.ErrorIs(t, err, rlock.ErrNotExported)
				require.ErrorContains(t, err, "want at least 1ms")
			}
			_, err = rlock.Export(ctx, nil)
			require.ErrorIs(t, err, rlock.ErrNotExported)
			require.NoError(t, ctx.Err())
			require.NoError(t, unlock())
		})
	}
}

// After Adopt the lease is an ordinary one, whatever the time of the ticket: it is renewed, and it expires soon if the adopter
// dies. Adopt takes the same options as a handle.
func TestLeaseAfterAnAdopt(t *testing.T) {
	for _, kind := range []string{"plain", "fenced", "write"} {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			const watchdog = 4 * time.Second
			r := newProxied(t, rlock.Options{WatchdogTimeout: watchdog})
			ticket := takenAlong(t, exportable(r.other, r.name)[kind], rlock.WithTicketTime(time.Hour))
			waits := lockAsync(t, exportable(r.other, r.name)[kind])
			redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 1 }, "the waiter knows that an hour is left")
			sleep(100 * time.Millisecond)
			ctx, _, err := r.Adopt(context.Background(), ticket)
			require.NoError(t, err)
			sleep(3 * watchdog / 2)
			require.NoError(t, ctx.Err(), "the hold is renewed")
			waits.stillWaits(t)
			r.proxy.BlackHole(true) // the adopter dies
			died := time.Now()
			a := waits.get(t, testTimeout)
			require.NoError(t, a.err)
			require.Less(t, time.Since(died), 30*time.Second, "the waiter does not sleep for the ticket's time")
			requireLostBy(t, ctx, a.at)
			require.NoError(t, a.unlock())

			short := takenAlong(t, exportable(r.other, r.name)[kind], rlock.WithTicketTime(time.Hour))
			ctx, unlock, err := r.other.Adopt(context.Background(), short, rlock.WithLease(2*time.Second))
			require.NoError(t, err)
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
			require.ErrorIs(t, unlock(), rlock.ErrLost)
		})
	}
}

// Waiters in all processes learn the time of a ticket, whether it is shorter or longer than the remaining lease. They wake when it
// expires, or when the adopter unlocks. Export itself does not hand the lock to a waiter of its process.
func TestWaitersBehindATicket(t *testing.T) {
	for _, kind := range []string{"plain", "fenced", "write"} {
		for _, which := range []string{"own", "other", "both"} {
			for _, ends := range []string{"expires", "is adopted"} {
				redistest.RunVirtual(t, kind+"/"+which+"/"+ends, func(t *testing.T) {
					b := newFixture(t)
					other := newClient(t, b.rdb)
					m := exportable(b.Client, b.name)[kind]
					ctx, _, err := m.Lock(context.Background())
					require.NoError(t, err)
					var line []pendingLock
					if which != "other" {
						line = append(line, lockAsync(t, m), lockAsync(t, m))
					}
					if which != "own" {
						line = append(line, lockAsync(t, exportable(other, b.name)[kind]))
					}
					redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == len(line) }, "all goroutines wait")
					sleep(200 * time.Millisecond) // and know that 30 s are left
					lasts := 2 * time.Second
					if ends == "is adopted" {
						lasts = time.Hour
					}
					free := time.Now().Add(lasts) // at the earliest, since the reply may be slow
					ticket, err := rlock.Export(ctx, rlock.WithTicketTime(lasts))
					require.NoError(t, err)
					if ends == "is adopted" {
						sleep(time.Second)
						for _, p := range line {
							p.stillWaits(t)
						}
						_, unlock, err := other.Adopt(context.Background(), ticket)
						require.NoError(t, err)
						free = time.Now()
						require.NoError(t, unlock())
					}
					var mu sync.Mutex
					inside := 0
					all := make(chan error, len(line))
					for _, p := range line {
						go func() {
							a := <-p.result
							if a.err == nil && a.at.Before(free.Add(-10*time.Millisecond)) {
								a.err = errors.New("a waiter got the lock before it was free")
							}
							if a.err == nil {
								mu.Lock()
								inside++
								if inside > 1 {
									a.err = errors.New("two goroutines hold the lock")
								}
								mu.Unlock()
								sleep(5 * time.Millisecond)
								mu.Lock()
								inside--
								mu.Unlock()
								a.err = errors.Join(a.err, a.unlock())
							}
							all <- a.err
						}()
					}
					for range line {
						require.NoError(t, within(t, all, testTimeout))
					}
					require.Less(t, time.Since(free), 20*time.Second, "no waiter sleeps for the lease before the Export")
				})
			}
		}
	}
}

// Close and Shutdown of the Client that exported do not end the ticket; a closed Client exports and adopts nothing.
func TestTicketOutlivesItsClient(t *testing.T) {
	for name, end := range map[string]func(*rlock.Client) error{
		"Close":    func(c *rlock.Client) error { c.Close(); return nil },
		"Shutdown": func(c *rlock.Client) error { return c.Shutdown(context.Background()) },
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b := newFixture(t)
			exporter := newClient(t, b.rdb)
			ticket := takenAlong(t, exporter.FencedMutex(b.name))
			open, unlock, err := exporter.Mutex(b.name + " 2").Lock(context.Background())
			require.NoError(t, err)
			if name == "Shutdown" {
				require.NoError(t, unlock())
			}
			require.NoError(t, end(exporter))
			if name == "Close" {
				_, err = rlock.Export(context.WithoutCancel(open))
				require.ErrorIs(t, err, rlock.ErrClosed)
				require.ErrorIs(t, err, rlock.ErrNotExported)
				require.NoError(t, unlock())
			}
			_, _, err = exporter.Adopt(context.Background(), ticket)
			require.ErrorIs(t, err, rlock.ErrClosed)
			_, _, err = b.Mutex(b.name).TryLock(context.Background(), 0)
			require.ErrorContains(t, err, "exported as")
			_, unlock, err = b.Adopt(context.Background(), ticket)
			require.NoError(t, err)
			require.NoError(t, unlock())
		})
	}
}

// A process may reserve fencing tokens for its waiters in advance. The token after an Adopt is above all reserved ones.
func TestTokenAfterAReserve(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.FencedMutex(b.name)
		ctx, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		line := []pendingLock{lockAsync(t, m)}
		for i := 2; i < 10; i++ {
			redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == i-1 }, "they wait in order")
			line = append(line, lockAsync(t, m))
		}
		redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == len(line) }, "all goroutines wait")
		require.NoError(t, ctx.Err())
		require.NoError(t, unlock())
		line[0].getAndUnlock(t, testTimeout)
		third := line[1].get(t, testTimeout)
		require.NoError(t, third.err)
		token, _ := rlock.FencingToken(third.ctx, b.name)
		ticket, err := rlock.Export(third.ctx)
		require.NoError(t, err)
		reserved, err := b.do(t, "GET", "redisson_lock_token:{"+b.name+"}").AsInt64()
		require.NoError(t, err)
		require.GreaterOrEqual(t, reserved, token)
		ctx, unlock, err = b.Adopt(context.Background(), ticket)
		require.NoError(t, err)
		adopted, _ := rlock.FencingToken(ctx, b.name)
		require.Greater(t, adopted, reserved)
		require.NoError(t, unlock())
		last := adopted
		for _, p := range line[2:] {
			a := p.get(t, testTimeout)
			require.NoError(t, a.err)
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
		ticket := takenAlong(t, b.FencedMutex(b.name))
		_, unlock, err := b.Adopt(context.Background(), ticket)
		require.NoError(t, err)
		require.NoError(t, unlock())
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
