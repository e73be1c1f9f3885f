package rlock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// scriptedLock is a Locker whose calls return these errors in turn, and then succeed.
type scriptedLock struct {
	rlock.Locker // for the methods that nobody calls

	locks, unlocks []error
	locked         int // calls of Lock
}

func (s *scriptedLock) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	s.locked++
	if ctx.Err() != nil {
		return ctx, nil, ctx.Err()
	}
	if err := next(&s.locks); err != nil {
		return ctx, nil, err
	}
	return ctx, func() error { return next(&s.unlocks) }, nil
}

func (s *scriptedLock) Name() string { return "scripted" }

func next(errs *[]error) (err error) {
	if len(*errs) > 0 {
		err, *errs = (*errs)[0], (*errs)[1:]
	}
	return err
}

// Lead pauses and goes on after a temporary error, and returns any other error.
func TestLeadOfAnyLocker(t *testing.T) {
	mine := errors.New("mine")
	for _, row := range []struct {
		name     string
		lock     scriptedLock
		returns  []error // of fn
		runs     int     // of fn
		attempts int
		errs     []error
	}{
		{name: "well", runs: 1, attempts: 1},
		{name: "fn fails", returns: []error{mine}, runs: 1, attempts: 1, errs: []error{mine}},
		{name: "fn met an outage", returns: []error{rlock.ErrUnreachable}, runs: 1, attempts: 1, errs: []error{rlock.ErrUnreachable}},
		{name: "fn lost another lock", returns: []error{rlock.ErrLost}, runs: 1, attempts: 1, errs: []error{rlock.ErrLost}},
		{
			name: "outage", lock: scriptedLock{locks: []error{rlock.ErrUnreachable, rlock.ErrNotReplicated, rlock.ErrLost}},
			runs: 1, attempts: 4,
		},
		{
			name: "lost", lock: scriptedLock{unlocks: []error{rlock.ErrLost, rlock.ErrLost}}, returns: []error{nil, mine},
			runs: 3, attempts: 3,
		},
		{
			name: "unlock without an answer", lock: scriptedLock{unlocks: []error{rlock.ErrUnreachable}}, returns: []error{mine},
			runs: 1, attempts: 1, errs: []error{rlock.ErrUnreachable, mine},
		},
		{name: "refused", lock: scriptedLock{locks: []error{mine}}, attempts: 1, errs: []error{mine}},
		{
			name: "closed after a loss", lock: scriptedLock{unlocks: []error{rlock.ErrLost}, locks: []error{nil, rlock.ErrClosed}},
			runs: 1, attempts: 2, errs: []error{rlock.ErrClosed},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runs, began := 0, time.Now()
				err := rlock.Lead(t.Context(), &row.lock, func(context.Context) error {
					runs++
					return next(&row.returns)
				})
				if row.errs == nil {
					require.NoError(t, err)
				}
				for _, want := range row.errs {
					require.ErrorIs(t, err, want)
				}
				require.Equal(t, row.runs, runs)
				require.Equal(t, row.attempts, row.lock.locked)
				pauses := row.attempts - 1
				require.GreaterOrEqual(t, time.Since(began), time.Duration(pauses*250)*time.Millisecond)
				require.LessOrEqual(t, time.Since(began), time.Duration(pauses*500)*time.Millisecond)
			})
		})
	}
}

// Lead heeds its ctx in each of its states, and lets a panic through.
func TestLeadEnds(t *testing.T) {
	never := func(context.Context) error { panic("without the lock") }
	for name, lock := range map[string]*scriptedLock{
		"before":       {},
		"in the pause": {locks: []error{rlock.ErrUnreachable}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				began := time.Now()
				if lock.locks == nil {
					cancel()
				} else {
					time.AfterFunc(10*time.Millisecond, cancel)
				}
				require.ErrorIs(t, rlock.Lead(ctx, lock, never), context.Canceled)
				require.LessOrEqual(t, time.Since(began), 10*time.Millisecond)
			})
		})
	}
	redistest.RunVirtual(t, "as the leader that was lost", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		lock := &scriptedLock{unlocks: []error{rlock.ErrLost}}
		require.ErrorIs(t, rlock.Lead(ctx, lock, func(context.Context) error { cancel(); return nil }), rlock.ErrLost)
		require.Equal(t, 1, lock.locked)
	})
	lock := &scriptedLock{unlocks: []error{rlock.ErrLost}}
	require.PanicsWithValue(t, "boom", func() {
		_ = rlock.Lead(t.Context(), lock, func(context.Context) error { panic("boom") })
	})
	require.Empty(t, lock.unlocks, "unlocked")
	require.Panics(t, func() { _ = rlock.Lead(t.Context(), lock, nil) })
	require.Panics(t, func() { _ = rlock.Lead(t.Context(), nil, never) })
	require.Panics(t, func() { _ = rlock.Lead(t.Context(), lock, never, nil) })
}

// term is an event: a candidate begins to lead, or ends because of why.
type term struct {
	leader int
	why    error
}

// Of three candidates one leads. The next leads when that term ends in order, or when Redis comes back after an outage.
func TestLead(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		name := redistest.Name(t)
		terms, outages := make(chan term, 100), make(chan term, 100)
		var inside atomic.Int32
		var stops [3]context.CancelFunc
		var ended [3]<-chan error // what Lead returned
		for i := range stops {
			client := newClient(t, s.Client(t), rlock.Options{
				WatchdogTimeout: time.Second,
				Trace:           &rlock.Trace{Failed: func(_ context.Context, f rlock.FailedInfo) { outages <- term{i, f.Err} }},
			})
			ctx, stop := context.WithCancel(context.Background())
			t.Cleanup(stop)
			stops[i] = stop
			ended[i] = async(func() error {
				return rlock.Lead(ctx, client.Mutex(name), func(ctx context.Context) error {
					assert.EqualValues(t, 1, inside.Add(1), "leaders")
					defer inside.Add(-1)
					terms <- term{leader: i}
					<-ctx.Done()
					terms <- term{i, context.Cause(ctx)}
					return ctx.Err()
				})
			})
		}

		first := receive(t, terms).leader
		stops[first]()
		require.Equal(t, term{first, context.Canceled}, receive(t, terms))
		require.ErrorIs(t, within(t, ended[first], testTimeout), context.Canceled)
		second := receive(t, terms)
		require.NoError(t, second.why)
		require.NotEqual(t, first, second.leader)

		s.Stop()
		end := receive(t, terms)
		require.Equal(t, second.leader, end.leader)
		require.ErrorIs(t, end.why, rlock.ErrLost)
		for hit := make(map[int]bool); len(hit) < 2; {
			outage := receive(t, outages)
			require.ErrorIs(t, outage.why, rlock.ErrUnreachable)
			hit[outage.leader] = true
		}
		s.Restart()
		require.NoError(t, receive(t, terms).why)
		for i := range stops {
			if i != first {
				require.Empty(t, ended[i], "Lead goes on")
				stops[i]()
				require.ErrorIs(t, within(t, ended[i], testTimeout), context.Canceled)
			}
		}
		fixture{rdb: s.Client(t)}.clear(t)
	})
}

func receive(t *testing.T, events <-chan term) term {
	t.Helper()
	select {
	case event := <-events:
		return event
	case <-time.After(testTimeout):
		require.FailNow(t, "nothing happens")
		panic("unreachable")
	}
}

// Leader and candidates return the same error if ctx is done or the Client is closed. Nil means that the leader ended by itself.
func TestLeadEndsAlikeForAll(t *testing.T) {
	mine := errors.New("mine")
	for name, end := range map[string]struct {
		end  func(c *rlock.Client, cancel context.CancelCauseFunc)
		errs []error
	}{
		"cancelled": {func(_ *rlock.Client, cancel context.CancelCauseFunc) { cancel(nil) }, []error{context.Canceled}},
		"cancelled for a reason": {
			func(_ *rlock.Client, cancel context.CancelCauseFunc) { cancel(mine) }, []error{context.Canceled, mine},
		},
		"closed": {func(c *rlock.Client, _ context.CancelCauseFunc) { c.Close() }, []error{rlock.ErrClosed}},
		"shut down": {func(c *rlock.Client, _ context.CancelCauseFunc) {
			over, cancel := context.WithCancel(context.Background())
			cancel()
			_ = c.Shutdown(over)
		}, []error{rlock.ErrClosed}},
	} {
		for returns, result := range map[string]error{"nil": nil, "its own": errors.New("its own")} {
			redistest.RunVirtual(t, name+"/"+returns, func(t *testing.T) {
				b := newFixture(t)
				ctx, cancel := context.WithCancelCause(context.Background())
				t.Cleanup(func() { cancel(nil) })
				began := make(chan struct{}, 2)
				lead := func() <-chan error {
					return async(func() error {
						return rlock.Lead(ctx, b.Mutex(b.name), func(ctx context.Context) error {
							began <- struct{}{}
							<-ctx.Done()
							return result
						})
					})
				}
				leader := lead()
				<-began
				waits := lead()
				redistest.Eventually(t, testTimeout, func() bool { return b.Stats().Waiting == 1 }, "the other one waits")
				end.end(b.Client, cancel)
				for who, ended := range map[string]<-chan error{"leader": leader, "waits": waits} {
					err := within(t, ended, testTimeout)
					for _, want := range end.errs {
						require.ErrorIs(t, err, want, who)
					}
					if who == "leader" && result != nil {
						require.ErrorIs(t, err, result)
					}
					require.NotContains(t, err.Error(), "\n")
				}
			})
		}
	}
	b := newFixture(t)
	ctx, cancel := context.WithCancel(context.Background())
	m := b.Mutex(b.name)
	require.NoError(t, rlock.Lead(ctx, m, nothingToDo))
	require.NoError(t, rlock.Lead(ctx, endsAtItsUnlock{m, cancel}, nothingToDo), "it had ended by itself")
}

// endsAtItsUnlock is a lock whose caller's ctx ends as it unlocks.
type endsAtItsUnlock struct {
	rlock.Locker

	cancel context.CancelFunc
}

func (e endsAtItsUnlock) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	ctx, unlock, err := e.Locker.Lock(ctx)
	return ctx, func() error { e.cancel(); return unlock() }, err
}

// A server that takes no writes for a moment ends no Lead, whichever the lock.
func TestLeadWaitsUntilRedisTakesWrites(t *testing.T) {
	redistest.Parallel(t)
	set := func(name, refusing, fine string) [2]func(*testing.T, fixture) {
		to := func(value string) func(*testing.T, fixture) {
			return func(t *testing.T, b fixture) {
				t.Helper()
				require.NoError(t, b.do(t, "CONFIG", "SET", name, value).Error())
			}
		}
		return [2]func(*testing.T, fixture){to(refusing), to(fine)}
	}
	misconf := set("save", "3600 1", "")
	saves := misconf[0]
	misconf[0] = func(t *testing.T, b fixture) { // a snapshot that cannot be written
		t.Helper()
		require.NoError(t, b.do(t, "SET", b.name, "x").Error())
		dir, err := b.do(t, "CONFIG", "GET", "dir").AsStrMap()
		require.NoError(t, err)
		require.NoError(t, os.Mkdir(filepath.Join(dir["dir"], "taken.rdb"), 0o700))
		saves(t, b)
		require.NoError(t, b.do(t, "BGSAVE").Error())
		redistest.Eventually(t, testTimeout, func() bool { return b.do(t, "SET", b.name, "y").Error() != nil }, "the snapshot has failed")
	}
	for said, set := range map[string][2]func(*testing.T, fixture){
		"NOREPLICAS": set("min-replicas-to-write", "1", "0"), "OOM": set("maxmemory", "1", "0"), "MISCONF": misconf,
	} {
		for kind, lock := range map[string]func(c *rlock.Client, name string) rlock.Locker{
			"Mutex":     func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name) },
			"FairMutex": func(c *rlock.Client, name string) rlock.Locker { return c.FairMutex(name) },
			"All":       func(c *rlock.Client, name string) rlock.Locker { return rlock.All(c.Mutex(name), c.Mutex(name+":2")) },
			"All of two kinds": func(c *rlock.Client, name string) rlock.Locker {
				return rlock.All(c.Mutex(name), c.FairMutex(name+":2"))
			},
			"Upgradeable": func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Upgradeable() },
		} {
			t.Run(said+"/"+kind, func(t *testing.T) {
				redistest.Parallel(t)
				s := redistest.Start(t, "--dbfilename", "taken.rdb")
				b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
				failed := make(chan error, 100)
				c := newClient(t, s.Client(t), rlock.Options{Trace: &rlock.Trace{
					Failed: func(_ context.Context, f rlock.FailedInfo) { failed <- f.Err },
				}})
				set[0](t, b)
				led := async(func() error { return rlock.Lead(context.Background(), lock(c, "leader"), nothingToDo) })
				select {
				case err := <-failed:
					require.ErrorContains(t, err, said)
				case err := <-led:
					require.FailNow(t, "ended", "%v", err)
				case <-time.After(testTimeout):
					require.FailNow(t, "not refused")
				}
				set[1](t, b)
				require.NoError(t, within(t, led, testTimeout))
			})
		}
	}
}

// A leader that is asked resigns when its term is over, and then waits for the next. It keeps leading if no other candidate waits.
func TestLeadResigns(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		const mandate = 100 * time.Millisecond
		terms := make(chan term, 100)
		lead := func(i int) (stop context.CancelFunc, ended <-chan error) {
			ctx, stop := context.WithCancel(context.Background())
			t.Cleanup(stop)
			m := newClient(t, b.rdb).Mutex(b.name, rlock.WithAsked())
			return stop, async(func() error {
				return rlock.Lead(ctx, m, func(ctx context.Context) error {
					began := time.Now()
					terms <- term{leader: i}
					<-ctx.Done()
					if errors.Is(context.Cause(ctx), rlock.ErrResigned) {
						assert.GreaterOrEqual(t, time.Since(began), mandate)
					}
					terms <- term{i, context.Cause(ctx)}
					return errors.New("whatever")
				}, rlock.ResignWhenAsked(mandate))
			})
		}
		stopFirst, first := lead(1)
		require.Equal(t, term{leader: 1}, receive(t, terms))
		sleep(2 * mandate)
		require.Empty(t, terms, "nobody has asked")
		stopSecond, second := lead(2)
		for i := range 4 { // they take turns
			leader := i%2 + 1
			end := receive(t, terms)
			require.Equal(t, leader, end.leader)
			require.ErrorIs(t, end.why, rlock.ErrResigned)
			require.EqualError(t, end.why, `rlock: "`+b.name+`": resigned when asked for the lock`)
			require.Equal(t, term{leader: 3 - leader}, receive(t, terms))
		}
		stopSecond()
		require.ErrorIs(t, within(t, second, testTimeout), context.Canceled)
		stopFirst()
		require.ErrorIs(t, within(t, first, testTimeout), context.Canceled)

		err := rlock.Lead(context.Background(), b.Mutex(b.name), func(context.Context) error { panic("it runs") }, rlock.ResignWhenAsked(mandate))
		require.ErrorContains(t, err, "ResignWhenAsked needs a lock WithAsked")
		locked, err := b.Mutex(b.name).IsLocked(context.Background())
		require.NoError(t, err)
		require.False(t, locked)
	})
}

// A leader with WithAsked also resigns for Ask, whose caller need not want to lead.
func TestLeadResignsForAsk(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		terms := make(chan term, 100)
		ended := async(func() error {
			return rlock.Lead(ctx, b.Mutex(b.name, rlock.WithAsked()), func(ctx context.Context) error {
				terms <- term{}
				<-ctx.Done()
				terms <- term{why: context.Cause(ctx)}
				return nil
			}, rlock.ResignWhenAsked(0))
		})
		require.NoError(t, receive(t, terms).why)
		other := newClient(t, b.rdb)
		b.earsOf(t, b.Client)
		heard, err := other.Ask(context.Background(), b.name)
		require.NoError(t, err)
		require.True(t, heard)
		require.ErrorIs(t, receive(t, terms).why, rlock.ErrResigned)
		require.NoError(t, receive(t, terms).why, "it leads again")
		heard, err = b.Ask(context.Background(), b.name)
		require.NoError(t, err)
		require.True(t, heard, "of its own process")
		require.ErrorIs(t, receive(t, terms).why, rlock.ErrResigned)
		stop()
		require.ErrorIs(t, within(t, ended, testTimeout), context.Canceled)
		heard, err = other.Ask(context.Background(), b.name)
		require.NoError(t, err)
		require.False(t, heard, "nobody has it")
	})
}
