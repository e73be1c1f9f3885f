package rlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// traceLines records the calls of a Trace as lines.
type traceLines struct {
	mu    sync.Mutex // guards the following
	lines []string
	got   []rlock.AcquiredInfo
	last  rlock.RenewedInfo
}

func (s *traceLines) tell(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

// take returns the lines since the last call.
func (s *traceLines) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := s.lines
	s.lines = nil
	return lines
}

// acquired returns the last AcquiredInfo.
func (s *traceLines) acquired() rlock.AcquiredInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got[len(s.got)-1]
}

type ctxLabel struct{}

// traced returns options with a Trace that records lines. Each line names the ctx's label, if any.
func (s *traceLines) traced() rlock.Options {
	label := func(ctx context.Context) string {
		if v, ok := ctx.Value(ctxLabel{}).(string); ok {
			return " by " + v
		}
		return ""
	}
	return rlock.Options{Trace: &rlock.Trace{
		Waiting: func(ctx context.Context, i rlock.WaitingInfo) { s.tell("%s waits%s", i.Kind, label(ctx)) },
		Acquired: func(ctx context.Context, i rlock.AcquiredInfo) {
			s.mu.Lock()
			s.got = append(s.got, i)
			s.mu.Unlock()
			by := ""
			if i.By != nil {
				by = " from" + label(i.By)
			}
			s.tell("%s %v%s%s", i.Kind, i.Path, label(ctx), by)
		},
		Failed: func(ctx context.Context, i rlock.FailedInfo) {
			waiting := ""
			if i.WasWaiting {
				waiting = " waiting"
			}
			s.tell("%s failed%s%s: %v", i.Kind, waiting, label(ctx), errorsOf(i.Err))
		},
		Passed: func(ctx context.Context, i rlock.PassedInfo) {
			waiting := ""
			if i.WasWaiting {
				waiting = " waiting"
			}
			s.tell("%s passed%s%s", i.Kind, waiting, label(ctx))
		},
		Released: func(ctx context.Context, i rlock.ReleasedInfo) {
			s.tell("%s %v released%s: %v", i.Kind, i.Path, label(ctx), errorsOf(i.Err))
		},
		Lost: func(ctx context.Context, i rlock.LostInfo) {
			s.tell("%s lost%s: %v, %v", i.Kind, label(ctx), i.Err.Reason, ctx.Err() != nil)
		},
		Renewed: func(i rlock.RenewedInfo) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.last = i
		},
	}}
}

// errorsOf names the sentinels that match an error.
func errorsOf(err error) string {
	all := errorNames(err)
	if len(all) == 0 {
		return "ok"
	}
	return strings.Join(all, ", ")
}

// A Trace reports each Lock once, and its unlock once, however many locks it consists of.
func TestTraceOfEachKind(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		var s traceLines
		b := newFixture(t, s.traced())
		var quorum []rlock.Locker
		for range 3 {
			quorum = append(quorum, newClient(t, redistest.Start(t).Client(t), s.traced()).Mutex(b.name))
		}
		rw := b.RWMutex(b.name + ":rw")
		for kind, l := range map[string]rlock.Locker{
			"mutex":       b.Mutex(b.name),
			"fenced":      b.FencedMutex(b.name),
			"fair":        b.FairMutex(b.name),
			"read":        rw.Read(),
			"write":       rw.Write(),
			"upgradeable": rw.Upgradeable(),
			"all":         rlock.All(b.Mutex(b.name), b.FencedMutex(b.name+":2")),
			"quorum":      rlock.Quorum(quorum...),
		} {
			ctx, unlock := enter(t, context.Background(), l)
			_, inner, err := l.TryLock(ctx, 0)
			require.NoError(t, err)
			reentry := "reentry"
			if kind == "all" {
				reentry = "free" // each of its locks may have been acquired in a different way
			}
			require.Equal(t, []string{kind + " free", kind + " " + reentry}, s.take())
			require.Equal(t, l.Name(), s.acquired().Name)
			require.NoError(t, inner())
			require.NoError(t, unlock())
			require.Error(t, unlock())
			require.Equal(t, []string{kind + " " + reentry + " released: ok", kind + " free released: ok"}, s.take())

			ended, cancel := context.WithCancel(context.Background())
			cancel()
			_, _, err = l.Lock(ended)
			require.Error(t, err)
			require.Equal(t, []string{kind + " failed: context canceled, not acquired"}, s.take())
		}
		_, _, err := b.Mutex("").Lock(context.Background())
		require.Error(t, err)
		require.Equal(t, []string{"mutex failed: ok"}, s.take(), "no sentinel")

		ctx, _ := enter(t, context.Background(), rw.Write())
		_, unlock, err := rw.Downgrade(ctx)
		require.NoError(t, err)
		require.NoError(t, unlock())
		require.Equal(t, []string{"write free", "write free released: ok", "read free", "read free released: ok"}, s.take())
	})
}

// The Trace reports how a lock was acquired after a wait, and from whom.
func TestTraceOfWaits(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		var s traceLines
		b := newFixture(t, s.traced())
		m := b.Mutex(b.name)
		as := func(who string) context.Context { return context.WithValue(context.Background(), ctxLabel{}, who) }
		_, unlock := enter(t, as("A"), m)
		_, _, err := m.TryLock(as("B"), 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.Equal(t, []string{"mutex free by A", "mutex failed by B: not acquired"}, s.take())
		_, _, err = m.TryLock(as("B"), time.Millisecond)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.Equal(t, []string{"mutex waits by B", "mutex failed waiting by B: not acquired"}, s.take())

		var got lockResult
		for { // until it is handed over: a waiter that asks Redis at the moment of the unlock cannot get it that way
			next := lockAsync(t, under{as("C"), m})
			var waits []string
			redistest.Eventually(t, testTimeout, func() bool {
				waits = append(waits, s.take()...)
				return len(waits) == 1
			}, "it waits")
			require.Equal(t, []string{"mutex waits by C"}, waits)
			require.NoError(t, unlock())
			got = next.gets(t, testTimeout)
			if b.Stats().HandOffs == 1 {
				break
			}
			require.NoError(t, got.unlock())
			_, unlock = enter(t, as("A"), m)
			s.take()
		}
		require.ElementsMatch(t, []string{"mutex free released by A: ok", "mutex handoff by C from by A"}, s.take())
		require.GreaterOrEqual(t, s.acquired().Waited, time.Duration(0))

		var other traceLines
		var log lockedBuffer
		o := other.traced()
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		c := newClient(t, b.rdb, o)
		far := lockAsync(t, under{as("D"), c.Mutex(b.name)})
		b.awaitPlace(t, b.name)
		require.NoError(t, got.unlock())
		last := far.gets(t, testTimeout)
		require.Equal(t, "mutex waits by D", other.take()[0])
		require.Contains(t, []rlock.Path{rlock.PathGrant, rlock.PathWoken}, other.acquired().Path) // PathWoken if its place in the queue had grown old
		require.Nil(t, other.acquired().By)
		if other.acquired().Path == rlock.PathGrant { // a grant lasts for two seconds, so it is not renewed late
			renewed := func() rlock.RenewedInfo {
				other.mu.Lock()
				defer other.mu.Unlock()
				return other.last
			}
			redistest.Eventually(t, testTimeout, func() bool { return renewed().Left > 0 }, "renewed")
			require.True(t, renewed().Granted)
			require.Less(t, renewed().Left, 2*time.Second)
			if renewed().Left > 2*time.Second/3 {
				require.Empty(t, log.String())
			}
		}
		require.NoError(t, last.unlock())

		stats := b.Stats()
		require.GreaterOrEqual(t, stats.Acquired, uint64(2))
		require.Equal(t, rlock.Stats{Acquired: stats.Acquired, HandOffs: 1, Grants: stats.Grants}, stats)
		stats = c.Stats()
		require.Equal(t, uint64(1), stats.Acquired)
		require.Zero(t, stats.Holds)

		require.NoError(t, b.do(t, "HSET", b.name, foreignOwner, "1").Error()) // a Redisson owner; its unlock wakes all
		woken := lockAsync(t, under{as("E"), m})
		redistest.Eventually(t, testTimeout, func() bool { return b.Stats().Waiting == 1 }, "it waits")
		answer(m.ForceUnlock(context.Background())).ok(t)
		require.NoError(t, woken.get(t, testTimeout).unlock())
		require.Equal(t, rlock.PathWoken, s.acquired().Path)
	})
}

// A loss is traced, logged and counted; the Trace also reports how much of the lease was left at each renewal.
func TestTraceOfALoss(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		var s traceLines
		var log lockedBuffer
		o := s.traced()
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		o.WatchdogTimeout = 900 * time.Millisecond
		b := newFixture(t, o)
		ctx, unlock := enter(t, context.WithValue(context.Background(), ctxLabel{}, "A"), b.Mutex(b.name))
		redistest.Eventually(t, testTimeout, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.last.Left > 0
		}, "renewed")
		s.mu.Lock()
		require.Equal(t, rlock.RenewedInfo{Name: b.name, Kind: "mutex", Left: s.last.Left, Watchdog: 900 * time.Millisecond}, s.last)
		require.Less(t, s.last.Left, 900*time.Millisecond)
		s.mu.Unlock()
		require.Equal(t, 1, b.Stats().Holds)
		require.NoError(t, b.do(t, "DEL", b.name).Error())
		<-ctx.Done()
		redistest.Eventually(t, testTimeout, func() bool { return b.Stats().Lost == 1 }, "counted")
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		redistest.Eventually(t, testTimeout, func() bool { return strings.Contains(log.String(), "level=WARN") }, "logged")
		require.Regexp(t, `msg="rlock: lost" name=`+regexp.QuoteMeta(b.name)+` kind=mutex owner=`+b.ID(), log.String())
		var lines []string
		redistest.Eventually(t, testTimeout, func() bool { // the Trace hears of the loss after the ctx is cancelled
			lines = append(lines, s.take()...)
			return len(lines) == 3
		}, "told")
		require.ElementsMatch(t, []string{"mutex free by A", "mutex lost by A: 2, true", "mutex free released by A: lost, not held"}, lines)
		require.Equal(t, rlock.Stats{Acquired: 1, Lost: 1}, b.Stats())
	})
}

// A renewal is reported with the watchdog time of its hold: one Client may have holds with different ones.
func TestTraceOfRenewals(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		var mu sync.Mutex // guards the following
		last := make(map[string]rlock.RenewedInfo)
		b := newFixture(t, rlock.Options{WatchdogTimeout: 3 * time.Second, Trace: &rlock.Trace{Renewed: func(i rlock.RenewedInfo) {
			mu.Lock()
			defer mu.Unlock()
			last[i.Name] = i
		}}})
		want := map[string]time.Duration{b.name: 3 * time.Second, b.name + ":short": 900 * time.Millisecond}
		for name, watchdog := range want {
			_, unlock := enter(t, context.Background(), b.Mutex(name, rlock.WithWatchdog(watchdog)))
			t.Cleanup(func() { require.NoError(t, unlock()) })
		}
		redistest.Eventually(t, testTimeout, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(last) == len(want)
		}, "both are renewed")
		mu.Lock()
		defer mu.Unlock()
		for name, watchdog := range want {
			require.Equal(t, watchdog, last[name].Watchdog)
			require.Less(t, last[name].Left, watchdog)
		}
	})
}

// The loss of a quorum is traced after its section has ended and can be unlocked, so that a Trace may wait for that unlock.
func TestTraceOfALossOfAQuorum(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		told, unlocked := make(chan rlock.LostInfo), make(chan struct{})
		var ended atomic.Bool
		o := rlock.Options{WatchdogTimeout: shortWatchdog, Trace: &rlock.Trace{Lost: func(ctx context.Context, i rlock.LostInfo) {
			ended.Store(ctx.Err() != nil)
			told <- i
			<-unlocked
		}}}
		e := newQuorumServers(t, 3)
		v := e.process(t, o)
		ctx, unlock := enter(t, context.Background(), v)
		e.awaitVotes(t, 3)
		for _, w := range e.watch[:2] {
			require.NoError(t, w.Do(t.Context(), w.B().Del().Key(e.name).Build()).Error())
		}
		info := <-told
		require.True(t, ended.Load())
		require.Error(t, ctx.Err())
		require.Equal(t, "quorum", info.Kind)
		lost := async(unlock)
		defer close(unlocked)
		require.ErrorIs(t, within(t, lost, testTimeout), rlock.ErrLost)
	})
}

// Acquired may give the ctx to a goroutine that ends the section at once. Released follows.
func TestTraceWhoseSectionEndsInAcquired(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		exported, released := make(chan error), make(chan rlock.ReleasedInfo, 1)
		c := newClient(t, b.rdb, rlock.Options{Trace: &rlock.Trace{
			Acquired: func(ctx context.Context, _ rlock.AcquiredInfo) {
				go func() { // ends when the test has its result
					_, err := rlock.Export(ctx)
					exported <- err
				}()
			},
			Released: func(_ context.Context, info rlock.ReleasedInfo) { released <- info },
		}})
		_, unlock := enter(t, t.Context(), c.Mutex(b.name))
		require.NoError(t, <-exported)
		require.True(t, (<-released).Exported)
		require.NoError(t, unlock())
		answer(c.Mutex(b.name).ForceUnlock(t.Context())).ok(t)
	})
}

// All is traced itself whatever its parts are; Upgradeables and Quorums in it are traced as well.
func TestTraceOfAllWithoutAMutex(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		var s traceLines
		b := newFixture(t, s.traced())
		var members []rlock.Locker
		for i := range 3 {
			members = append(members, newClient(t, b.rdb, s.traced()).Mutex(fmt.Sprint(b.name, i)))
		}
		up := rlock.All(b.RWMutex(b.name).Upgradeable())
		for kind, l := range map[string]*rlock.MultiMutex{"upgradeable": up, "quorum": rlock.All(rlock.Quorum(members...))} {
			require.NoError(t, l.Do(context.Background(), nothing))
			require.Equal(t, []string{kind + " free", "all free", kind + " free released: ok", "all free released: ok"}, s.take())
		}

		_, unlock := enter(t, context.Background(), newClient(t, b.rdb).RWMutex(b.name).Write())
		waits := lockAsync(t, up)
		var lines []string
		redistest.Eventually(t, testTimeout, func() bool {
			lines = append(lines, s.take()...)
			return slices.Contains(lines, "upgradeable waits")
		}, "it waits")
		require.Contains(t, lines, "all waits")
		require.NoError(t, unlock())
		got := waits.gets(t, testTimeout)
		require.Equal(t, rlock.PathWoken, s.acquired().Path)
		require.Equal(t, "all", s.acquired().Kind)
		require.NoError(t, got.unlock())
	})
}

// A Trace that panics while an All gives its locks back for a caller that has left ends nothing, and the Logger learns of it, also if no
// lock of a single Client is among them.
func TestTraceThatPanicsBehindTheCaller(t *testing.T) {
	var logs lockedBuffer
	redistest.Virtual(t, func(t *testing.T) {
		e := newQuorumServers(t, 3)
		v := e.process(t, rlock.Options{
			Logger: slog.New(slog.NewTextHandler(&logs, nil)),
			Trace:  &rlock.Trace{Released: func(context.Context, rlock.ReleasedInfo) { panic("out of order") }},
		})
		silent := func(on bool) {
			for _, p := range e.proxies {
				p.BlackHole(on)
			}
		}
		began := time.Now()
		_, _, err := rlock.All(v.QuorumMutex, refuses{&fakeLocker{name: e.name + ":z"}, func() { silent(true) }}).TryLock(t.Context(), 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		requireTookAtMost(t, time.Second, began, time.Now())
		sleep(3 * time.Second) // until the quorum's unlock ends
		silent(false)
		e.awaitVotes(t, 0)
	})
	require.Contains(t, logs.String(), "out of order")
}

// refuses is a fake lock that is taken, and does something when it is asked.
type refuses struct {
	*fakeLocker

	does func()
}

func (r refuses) TryLock(ctx context.Context, _ time.Duration) (context.Context, rlock.UnlockFunc, error) {
	r.does()
	return ctx, func() error { return rlock.ErrNotHeld }, rlock.ErrNotAcquired
}

// Several locks report themselves to the Trace of the Client of the first one given, in each process: the ids of Clients are random.
func TestTraceOfTheFirst(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		servers := []rueidis.Client{redistest.Start(t).Client(t), redistest.Start(t).Client(t), redistest.Start(t).Client(t)}
		var s traceLines
		o := s.traced()
		o.WatchdogTimeout = shortWatchdog
		for range 5 { // one order of ids in six
			traced, second, third := newClient(t, servers[0], o), newClient(t, servers[1]), newClient(t, servers[2])
			for kind, build := range map[string]func(...rlock.Locker) rlock.Locker{
				"quorum": func(l ...rlock.Locker) rlock.Locker { return rlock.Quorum(l...) },
				"all":    func(l ...rlock.Locker) rlock.Locker { return rlock.All(l...) },
			} {
				one, two, three := traced.Mutex(kind), second.Mutex(kind), third.Mutex(kind)
				require.NoError(t, lockOnce(t, build(one, two, three)))
				require.Equal(t, []string{kind + " free", kind + " free released: ok"}, s.take())
				require.NoError(t, lockOnce(t, build(two, one, three)))
				require.Empty(t, s.take())
			}
			require.NoError(t, lockOnce(t, rlock.All(rlock.All(traced.Mutex("z"), second.Mutex("y")), third.Mutex("x"))))
			require.Equal(t, []string{"all free", "all free released: ok"}, s.take())

			ctx, unlock := enter(t, context.Background(), rlock.Quorum(traced.Mutex("x"), second.Mutex("x"), third.Mutex("x")))
			for _, rdb := range servers {
				require.NoError(t, rdb.Do(t.Context(), rdb.B().Del().Key("x").Build()).Error())
			}
			<-ctx.Done()
			require.ErrorIs(t, unlock(), rlock.ErrLost)
			lines := s.take()
			redistest.Eventually(t, testTimeout, func() bool {
				lines = append(lines, s.take()...)
				return slices.Contains(lines, fmt.Sprintf("quorum lost: %v, true", rlock.LostGone))
			}, "the loss is told")
		}
	})
}

// lockOnce locks and unlocks.
func lockOnce(t *testing.T, l rlock.Locker) error {
	t.Helper()
	_, unlock := enter(t, context.Background(), l)
	return unlock()
}

// lockedBuffer is a log for several goroutines.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// errorNames returns the texts of the sentinels that match err.
func errorNames(err error) (names []string) {
	for _, sentinel := range []error{
		context.Canceled, rlock.ErrLost, rlock.ErrNotAcquired, rlock.ErrNotHeld, rlock.ErrClosed, rlock.ErrUnreachable,
	} {
		if errors.Is(err, sentinel) {
			names = append(names, strings.TrimPrefix(sentinel.Error(), "rlock: "))
		}
	}
	return names
}

// askedFor is a client that notes the caller of each command, as a tracing wrapper would. Commands that a Client sends
// on its own behalf have no caller.
type askedFor struct {
	rueidis.Client
	mu  sync.Mutex // guards the following
	who []any
}

func (a *askedFor) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	a.note(ctx)
	return a.Client.Do(ctx, cmd)
}

func (a *askedFor) DoMulti(ctx context.Context, all ...rueidis.Completed) []rueidis.RedisResult {
	a.note(ctx)
	return a.Client.DoMulti(ctx, all...)
}

func (a *askedFor) note(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if who := ctx.Value(ctxLabel{}); who != nil {
		a.who = append(a.who, who)
	}
}

func (a *askedFor) peek() []any {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.who
}

func (a *askedFor) take() []any {
	a.mu.Lock()
	defer a.mu.Unlock()
	who := a.who
	a.who = nil
	return who
}

// A wrapped rueidis client finds the values of the caller's ctx in the ctx of each command.
func TestCommandsHaveTheValuesOfTheCaller(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		loadScripts(t, b.Client)
		require.NoError(t, rlock.All(b.Mutex(b.name), b.Mutex(b.name+":2")).Do(context.Background(), nothing)) // loads their scripts, too
		rdb := &askedFor{Client: b.rdb}
		c := newClient(t, rdb)
		for _, ends := range []bool{false, true} { // with a ctx that ends, the query runs on another goroutine
			ctx := context.WithValue(context.Background(), ctxLabel{}, "A")
			if ends {
				var cancel context.CancelFunc
				ctx, cancel = context.WithCancel(ctx)
				t.Cleanup(cancel)
			}
			for name, l := range map[string]rlock.Locker{
				"mutex": c.Mutex(b.name), "all": rlock.All(c.Mutex(b.name), c.Mutex(b.name+":2")),
			} {
				inner, unlock := enter(t, ctx, l)
				require.Equal(t, []any{"A"}, rdb.take(), name)
				require.NoError(t, c.Mutex(b.name, rlock.WithLease(time.Hour)).Do(inner, func(context.Context) error { return nil }))
				require.Equal(t, []any{"A"}, rdb.take(), "%s: re-entry for longer", name)
				redistest.Eventually(t, testTimeout, func() bool { return len(rdb.peek()) > 0 }, "the count follows")
				require.Equal(t, []any{"A"}, rdb.take(), "%s: the count", name)
				require.NoError(t, unlock())
				require.Equal(t, []any{"A"}, rdb.take(), name)
			}
			answer(c.Mutex(b.name).IsLocked(ctx)).ok(t)
			require.Equal(t, []any{"A"}, rdb.take(), "a query")
		}
	})
}
