package rlock_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/bubble"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Lead pauses and goes on after a temporary error, and returns any other error.
func TestLeadOfAnyLocker(t *testing.T) {
	mine := errors.New("mine")
	for _, row := range []struct {
		name     string
		lock     fakeLock
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
			name: "outage", lock: fakeLock{locks: []error{rlock.ErrUnreachable, rlock.ErrNotReplicated, rlock.ErrLost}},
			runs: 1, attempts: 4,
		},
		{
			name: "lost", lock: fakeLock{unlocks: []error{rlock.ErrLost, rlock.ErrLost}}, returns: []error{nil, mine},
			runs: 3, attempts: 3,
		},
		{
			name: "unlock without an answer", lock: fakeLock{unlocks: []error{rlock.ErrUnreachable}}, returns: []error{mine},
			runs: 1, attempts: 1, errs: []error{rlock.ErrUnreachable, mine},
		},
		{name: "refused", lock: fakeLock{locks: []error{mine}}, attempts: 1, errs: []error{mine}},
		{
			name: "closed after a loss", lock: fakeLock{unlocks: []error{rlock.ErrLost}, locks: []error{nil, rlock.ErrClosed}},
			runs: 1, attempts: 2, errs: []error{rlock.ErrClosed},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
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
	for name, row := range map[string]struct {
		lock  fakeLock
		after time.Duration
	}{
		"before": {}, "in the pause": {fakeLock{locks: []error{rlock.ErrUnreachable}}, 10 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				began := time.Now()
				ctx, cancel := context.WithDeadline(t.Context(), began.Add(row.after))
				defer cancel()
				require.ErrorIs(t, rlock.Lead(ctx, &row.lock, never), context.DeadlineExceeded)
				require.Equal(t, row.after, time.Since(began))
			})
		})
	}
	t.Run("as the leader that was lost", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		lock := &fakeLock{unlocks: []error{rlock.ErrLost}}
		require.ErrorIs(t, rlock.Lead(ctx, lock, func(context.Context) error { cancel(); return nil }), rlock.ErrLost)
		require.Equal(t, 1, lock.locked)
	})
	lock := &fakeLock{unlocks: []error{rlock.ErrLost}}
	require.PanicsWithValue(t, "boom", func() {
		_ = rlock.Lead(t.Context(), lock, func(context.Context) error { panic("boom") })
	})
	require.Equal(t, 1, lock.unlocked)
	require.Panics(t, func() { _ = rlock.Lead(t.Context(), lock, nil) })
	require.Panics(t, func() { _ = rlock.Lead(t.Context(), nil, never) })
	require.Panics(t, func() { _ = rlock.Lead(t.Context(), lock, never, nil) })
}

// term is an event: a candidate begins to lead, or ends because of why.
type term struct {
	leader int
	why    error
	lasted time.Duration
}

// candidate wants to lead until stop is called.
func candidate(t *testing.T, l rlock.Locker, i int, terms chan<- term, o ...rlock.LeadOption) (stop context.CancelFunc, ended <-chan error) {
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	return stop, async(func() error {
		return rlock.Lead(ctx, l, func(ctx context.Context) error {
			began := time.Now()
			terms <- term{leader: i}
			<-ctx.Done()
			terms <- term{i, context.Cause(ctx), time.Since(began)}
			return ctx.Err()
		}, o...)
	})
}

func awaitTerm(t *testing.T, events <-chan term) term {
	t.Helper()
	return redistest.Within(t, testTimeout, events, "a term begins or ends")
}

// Of three candidates one leads. The next leads when that term ends in order, or when Redis comes back after an outage.
func TestLead(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		name := redistest.Name(t)
		terms, outages := make(chan term, 100), make(chan term, 100)
		var stops [3]context.CancelFunc
		var ended [3]<-chan error // what Lead returned
		for i := range stops {
			client := newClient(t, s.Client(t), rlock.Options{
				WatchdogTimeout: time.Second,
				Trace:           &rlock.Trace{Failed: func(_ context.Context, f rlock.FailedInfo) { outages <- term{leader: i, why: f.Err} }},
			})
			stops[i], ended[i] = candidate(t, client.Mutex(name), i, terms)
		}

		first := awaitTerm(t, terms).leader
		stops[first]()
		end := awaitTerm(t, terms)
		require.Equal(t, first, end.leader)
		require.Equal(t, context.Canceled, end.why)
		require.ErrorIs(t, within(t, ended[first], testTimeout), context.Canceled)
		second := awaitTerm(t, terms)
		require.NoError(t, second.why)
		require.NotEqual(t, first, second.leader)

		s.Stop()
		end = awaitTerm(t, terms)
		require.Equal(t, second.leader, end.leader)
		require.ErrorIs(t, end.why, rlock.ErrLost)
		for hit := make(map[int]bool); len(hit) < 2; {
			outage := awaitTerm(t, outages)
			require.ErrorIs(t, outage.why, rlock.ErrUnreachable)
			hit[outage.leader] = true
		}
		s.Restart()
		require.NoError(t, awaitTerm(t, terms).why)
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
			runVirtual(t, name+"/"+returns, func(t *testing.T, b fixture) {
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

// A leader that is asked resigns when its term is over, and then waits for the next. It keeps leading if no other candidate waits.
func TestLeadResigns(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		const mandate = 100 * time.Millisecond
		terms := make(chan term, 100)
		lead := func(i int) (stop context.CancelFunc, ended <-chan error) {
			m := newClient(t, b.rdb).Mutex(b.name, rlock.WithAsked())
			return candidate(t, m, i, terms, rlock.ResignWhenAsked(mandate))
		}
		stopFirst, first := lead(1)
		require.Equal(t, term{leader: 1}, awaitTerm(t, terms))
		sleep(2 * mandate)
		require.Empty(t, terms, "nobody has asked")
		stopSecond, second := lead(2)
		for i := range 4 { // they take turns
			leader := i%2 + 1
			end := awaitTerm(t, terms)
			require.Equal(t, leader, end.leader)
			require.ErrorIs(t, end.why, rlock.ErrResigned)
			require.EqualError(t, end.why, `rlock: "`+b.name+`": resigned when asked for the lock`)
			require.GreaterOrEqual(t, end.lasted, mandate)
			require.Equal(t, term{leader: 3 - leader}, awaitTerm(t, terms))
		}
		stopSecond()
		require.ErrorIs(t, within(t, second, testTimeout), context.Canceled)
		stopFirst()
		require.ErrorIs(t, within(t, first, testTimeout), context.Canceled)

		err := rlock.Lead(context.Background(), b.Mutex(b.name), func(context.Context) error { panic("it runs") }, rlock.ResignWhenAsked(mandate))
		require.ErrorContains(t, err, "ResignWhenAsked needs a lock WithAsked")
		require.False(t, b.exists(t, b.name))
	})
}

// A leader with WithAsked also resigns for Ask, whose caller need not want to lead.
func TestLeadResignsForAsk(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		other := newClient(t, b.rdb)
		terms := make(chan term, 100)
		stop, ended := candidate(t, b.Mutex(b.name, rlock.WithAsked()), 0, terms, rlock.ResignWhenAsked(0))
		asks := func(c *rlock.Client, hears bool) {
			answer(c.Ask(context.Background(), b.name)).is(t, hears)
		}
		require.NoError(t, awaitTerm(t, terms).why)
		b.earsOf(t, b.Client)
		for _, c := range []*rlock.Client{other, b.Client} { // of another process, and its own
			asks(c, true)
			require.ErrorIs(t, awaitTerm(t, terms).why, rlock.ErrResigned)
			require.NoError(t, awaitTerm(t, terms).why, "it leads again")
		}
		stop()
		require.ErrorIs(t, within(t, ended, testTimeout), context.Canceled)
		asks(other, false)
	})
}

// Whatever Redis says, a candidate for a lock of any kind goes on: somebody may mend it. Only what the program itself got wrong ends it.
func TestLeadGoesOnAfterRefusals(t *testing.T) {
	led := errors.New("led")
	leads := func(context.Context) error { return led }
	kinds := map[string]func(c *rlock.Client, name string) rlock.Locker{
		"Mutex":       func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name) },
		"FairMutex":   func(c *rlock.Client, name string) rlock.Locker { return c.FairMutex(name) },
		"Upgradeable": func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Upgradeable() },
		"All":         func(c *rlock.Client, name string) rlock.Locker { return rlock.All(c.Mutex(name), c.Mutex(name+":2")) },
		"All of two kinds": func(c *rlock.Client, name string) rlock.Locker {
			return rlock.All(c.Mutex(name), c.FairMutex(name+":2"))
		},
	}
	for _, says := range []string{
		"NOAUTH Authentication required.", "WRONGPASS invalid username-password pair or user is disabled.",
		"NOPERM this user has no permissions to run the 'evalsha' command", "OOM command not allowed when used memory > 'maxmemory'.",
		"OOM command not allowed when used memory > 'maxmemory'. script: 6b1b, on @user_script:12.",
		"MISCONF Redis is configured to save RDB snapshots", "NOREPLICAS Not enough good replicas to write.",
		"LOADING Redis is loading the dataset in memory", "BUSY Redis is busy running a script.",
		"READONLY You can't write against a read only replica.", "CLUSTERDOWN The cluster is down",
		"MASTERDOWN Link with MASTER is down", "ERR max number of clients reached", "ERR what nobody has thought of",
	} {
		for kind, lock := range kinds {
			redistest.RunVirtual(t, strings.ReplaceAll(says, " ", "-")+"/"+kind, func(t *testing.T) {
				var log lockedBuffer
				proxy, name := redistest.StartProxy(t, redistest.Shared(t)), redistest.Name(t)
				c := newClient(t, redistest.Dial(t, proxy.Addr()), rlock.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
				until := sync.OnceValue(func() time.Time { return time.Now().Add(50 * time.Millisecond) })
				proxy.OnRequest(func(cmd []string) redistest.Action {
					if isScript(cmd) && time.Now().Before(until()) {
						return redistest.Fail(says)
					}
					return redistest.Pass
				})
				require.ErrorIs(t, rlock.Lead(context.Background(), lock(c, name), leads), led)
				c.Close() // flushes the log
				if strings.HasPrefix(says, "NO") && !strings.HasPrefix(says, "NOREPL") || strings.HasPrefix(says, "WRONG") {
					require.Contains(t, log.String(), "Redis refuses a candidate of Lead")
				}
			})
		}
	}
	runVirtual(t, "a bad name", func(t *testing.T, b fixture) {
		require.NoError(t, b.do(t, "SET", b.name, "a text").Error())
		require.ErrorContains(t, rlock.Lead(context.Background(), b.Mutex(b.name), leads), "not a lock")
		require.ErrorContains(t, rlock.Lead(context.Background(), b.Mutex(""), leads), "empty")
	})
}

// Nor does the longest wait of a handle end it.
func TestLeadGoesOnAfterMaxWait(t *testing.T) {
	redistest.OnlyVirtual(t, "it waits for a minute", func(t *testing.T) {
		b := newFixture(t)
		a := locked(t, b.Mutex(b.name))
		time.AfterFunc(time.Minute, func() { _ = a.unlock() })
		leads := func(context.Context) error { return nil }
		require.NoError(t, rlock.Lead(context.Background(), b.Mutex(b.name, rlock.WithMaxWait(time.Second)), leads))
	})
}

// awaitState waits for a state by its changes alone.
func awaitState(t *testing.T, s *rlock.Leadership, is func(rlock.LeadState) bool) rlock.LeadState {
	t.Helper()
	over := time.After(testTimeout)
	for {
		changed := s.Changed()
		if now := s.State(); is(now) {
			return now
		}
		select {
		case <-changed:
		case <-over:
			require.FailNow(t, "no such state", "%+v", s.State())
		}
	}
}

func leads(s rlock.LeadState) bool { return s.Leading }
func rests(s rlock.LeadState) bool { return !s.Leading }

// A Leadership tells of each term: its beginning, its number, and its end, by a loss, by fn, and with the ctx.
func TestLeadership(t *testing.T) {
	for name, kind := range map[string]func(b fixture) *rlock.Mutex{
		"fenced": func(b fixture) *rlock.Mutex { return b.FencedMutex(b.name) },
		"plain":  func(b fixture) *rlock.Mutex { return b.Mutex(b.name) },
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b := newFixture(t, rlock.Options{WatchdogTimeout: time.Second})
			lock := kind(b)
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			if name == "fenced" { // terms of others
				for range 3 {
					require.NoError(t, lock.Do(ctx, nothingToDo))
				}
			}
			before := time.Now()
			var s rlock.Leadership
			require.Zero(t, s.State())
			ends := make(chan error)
			tokens := make(chan int64, 10)
			ended := async(func() error {
				return rlock.Lead(ctx, lock, func(ctx context.Context) error {
					token, _ := lock.FencingToken(ctx)
					tokens <- token
					select {
					case err := <-ends:
						return err
					case <-ctx.Done():
						<-ends // it takes its time
						return ctx.Err()
					}
				}, rlock.ReportTo(&s))
			})
			first := awaitState(t, &s, leads)
			if token := <-tokens; name == "fenced" {
				require.Equal(t, token, first.Term)
				require.Equal(t, int64(4), token)
			} else {
				require.Equal(t, int64(1), first.Term)
			}
			require.WithinRange(t, first.Since, before, time.Now())
			require.Equal(t, first, s.State(), "nothing changes")

			require.NoError(t, b.do(t, "DEL", lock.Name()).Error())
			lost := awaitState(t, &s, rests) // though fn goes on
			require.Equal(t, first.Term, lost.Term)
			require.False(t, lost.Since.Before(first.Since))
			ends <- nil
			second := awaitState(t, &s, leads)
			require.Greater(t, second.Term, first.Term)

			stop()
			require.Equal(t, second.Term, awaitState(t, &s, rests).Term)
			ends <- nil
			require.ErrorIs(t, within(t, ended, testTimeout), context.Canceled)
			require.False(t, s.State().Leading)
		})
	}
}

// A term ends with its function, whatever that returns, also by a panic.
func TestLeadershipEndsWithItsFunction(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		var s rlock.Leadership
		mine := errors.New("mine")
		require.ErrorIs(t, rlock.Lead(context.Background(), new(fakeLock), func(context.Context) error {
			require.True(t, s.State().Leading)
			return mine
		}, rlock.ReportTo(&s)), mine)
		changed := s.Changed()
		require.Equal(t, int64(1), s.State().Term)
		require.False(t, s.State().Leading)
		require.PanicsWithValue(t, "boom", func() {
			_ = rlock.Lead(context.Background(), new(fakeLock), func(context.Context) error { panic("boom") }, rlock.ReportTo(&s))
		})
		<-changed
		require.Equal(t, int64(2), s.State().Term)
		require.False(t, s.State().Leading)
		require.Panics(t, func() { rlock.ReportTo(nil) })

		// Whoever asks sees the end at once, not only when it is told.
		ctx, stop := context.WithCancel(context.Background())
		_ = rlock.Lead(ctx, new(fakeLock), func(context.Context) error {
			stop()
			require.False(t, s.State().Leading)
			return nil
		}, rlock.ReportTo(&s))
	})
}
