package rlock_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// hangingCode is foreign code that hangs, like a write to a full pipe.
type hangingCode struct {
	slog.Handler
	hangs chan struct{} // closed when somebody hangs
	goOn  chan struct{}
	once  sync.Once
	lines atomic.Int64 // that were written, and those that a line says were dropped
}

func newJam(t testing.TB) (j *hangingCode, goOn func()) {
	j = &hangingCode{Handler: slog.NewTextHandler(io.Discard, nil), hangs: make(chan struct{}), goOn: make(chan struct{})}
	goOn = sync.OnceFunc(func() { close(j.goOn) })
	t.Cleanup(goOn)
	return j, goOn
}

func (j *hangingCode) hang() {
	j.once.Do(func() { close(j.hangs) })
	<-j.goOn
}

// Handle makes a Logger of it.
func (j *hangingCode) Handle(_ context.Context, r slog.Record) error {
	j.hang()
	j.lines.Add(1)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "dropped" {
			j.lines.Add(a.Value.Int64())
		}
		return true
	})
	return nil
}

// ways in which foreign code can be called by a Client on a goroutine of its own.
func (j *hangingCode) ways() map[string]rlock.Options {
	return map[string]rlock.Options{
		"Logger":  {Logger: slog.New(j)},
		"Lost":    {Trace: &rlock.Trace{Lost: func(context.Context, rlock.LostInfo) { j.hang() }}},
		"Renewed": {Trace: &rlock.Trace{Renewed: func(rlock.RenewedInfo) { j.hang() }}},
	}
}

// G1 to G3, G9: a Logger or Trace that hangs keeps neither renewals nor losses from anybody, nor Lock, unlock and Close from returning.
func TestHangingLogger(t *testing.T) {
	for _, way := range []string{"Logger", "Lost", "Renewed"} {
		redistest.RunVirtual(t, way, func(t *testing.T) {
			b := newFixture(t)
			j, _ := newJam(t)
			o := j.ways()[way]
			o.WatchdogTimeout = shortWatchdog
			c := newClient(t, b.rdb, o)
			ctx := context.Background()
			renewed, unlock, err := c.Mutex(b.name).Lock(ctx)
			require.NoError(t, err)
			lost, _, err := c.Mutex(b.name+":lost", rlock.WithLease(500*time.Millisecond)).Lock(ctx)
			require.NoError(t, err)
			<-lost.Done()
			<-j.hangs

			later, unlockLater, err := c.Mutex(b.name+":later", rlock.WithLease(500*time.Millisecond)).Lock(ctx)
			require.NoError(t, err)
			<-later.Done()
			require.ErrorIs(t, context.Cause(later), rlock.ErrLost)
			require.ErrorIs(t, unlockLater(), rlock.ErrLost)
			sleep(shortWatchdog * 3 / 2)
			require.NoError(t, renewed.Err())
			_, _, err = b.Mutex(b.name).TryLock(ctx, 0)
			require.ErrorIs(t, err, rlock.ErrNotAcquired, "renewed")

			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			refused := async(func() error { _, _, err := c.Mutex(b.name).Lock(short); return err })
			require.ErrorIs(t, within(t, refused, testTimeout), rlock.ErrNotAcquired)
			require.NoError(t, unlock())
			require.NoError(t, within(t, async(func() error { c.Close(); return nil }), testTimeout))
		})
	}
}

// The same for a quorum, whose losses come by timers and by the renewers of several Clients.
func TestHangingLoggerOfAQuorum(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		e := newQuorumServers(t, 3)
		j, _ := newJam(t)
		o := j.ways()["Logger"]
		o.WatchdogTimeout = shortWatchdog
		v := e.process(t, o)
		ctx := context.Background()
		lost, unlockLost, err := v.handle(rlock.WithLease(200 * time.Millisecond)).Lock(ctx)
		require.NoError(t, err)
		<-lost.Done()
		require.ErrorIs(t, unlockLost(), rlock.ErrLost)
		<-j.hangs
		held, unlock, err := v.Lock(ctx)
		require.NoError(t, err)
		sleep(shortWatchdog * 3 / 2)
		require.NoError(t, held.Err())
		require.NoError(t, unlock())
		for _, c := range v.clients {
			require.NoError(t, within(t, async(func() error { c.Close(); return nil }), testTimeout))
		}
	})
}

// G2: all sections whose lease is over are cancelled before the first line of the log is written, and each loss is in the log, or counted
// there as dropped.
func TestLossesAreToldBeforeTheyAreLogged(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		j, goOn := newJam(t)
		c := newClient(t, b.rdb, rlock.Options{Logger: slog.New(j)})
		const n = 1500 // more than lines are kept
		m := make([]rlock.Locker, n)
		for i := range m {
			m[i] = c.Mutex(fmt.Sprintf("{%s}:%d", b.name, i), rlock.WithLease(time.Second))
		}
		var ends sync.WaitGroup
		for i := 0; i < n; i += 500 {
			ctx, _, err := rlock.All(m[i : i+500]...).Lock(context.Background())
			require.NoError(t, err)
			ends.Go(func() { <-ctx.Done() }) // ends with the lease
		}
		require.NoError(t, within(t, async(func() error { ends.Wait(); return nil }), testTimeout))
		redistest.Eventually(t, testTimeout, func() bool { return c.Stats().Lost == n }, "all are told")
		require.Zero(t, j.lines.Load())
		goOn()
		redistest.Eventually(t, testTimeout, func() bool { return j.lines.Load() == n }, "all are logged or counted")
	})
}

// hookFails makes functions of a Trace that fail when they are on: they panic, or end their goroutine as a test does that fails.
type hookFails struct {
	on, exits atomic.Bool
	calls     atomic.Int32 // while it was on
}

const hookPanic = "a hook"

func (h *hookFails) now() {
	if h.on.Load() {
		h.calls.Add(1)
		if h.exits.Load() {
			runtime.Goexit()
		}
		panic(hookPanic)
	}
}

func (h *hookFails) traces() map[string]*rlock.Trace {
	return map[string]*rlock.Trace{
		"Waiting":  {Waiting: func(context.Context, rlock.WaitingInfo) { h.now() }},
		"Acquired": {Acquired: func(context.Context, rlock.AcquiredInfo) { h.now() }},
		"Failed":   {Failed: func(context.Context, rlock.FailedInfo) { h.now() }},
		"Released": {Released: func(context.Context, rlock.ReleasedInfo) { h.now() }},
	}
}

// outcome tells how a function ended: by returning, with a panic and its value, or with the end of its goroutine.
func outcome(f func()) any {
	end := make(chan any, 1)
	go func() { // ends with f
		ended := any("Goexit")
		defer func() {
			if v := recover(); v != nil {
				ended = v
			}
			end <- ended
		}()
		f()
		ended = "returned"
	}()
	return <-end
}

// A function of a Trace that panics, or ends the goroutine, does so to its caller alone, and leaves no lock held and no name blocked.
func TestHooksThatPanic(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		var h hookFails
		for hook, trace := range h.traces() {
			b := newFixture(t, rlock.Options{Trace: trace})
			var quorum []rlock.Locker
			clients := []*rlock.Client{b.Client}
			for range 3 {
				c := newClient(t, redistest.Start(t).Client(t), rlock.Options{Trace: trace})
				clients, quorum = append(clients, c), append(quorum, c.Mutex(b.name))
			}
			rw := b.RWMutex(b.name + ":rw")
			locks := map[string]rlock.Locker{
				"mutex":              b.Mutex(b.name),
				"taken for longer":   b.Mutex(b.name+":min", rlock.WithMinHold(time.Hour)),
				"fenced":             b.FencedMutex(b.name),
				"fair":               b.FairMutex(b.name + ":fair"),
				"read":               rw.Read(),
				"write":              rw.Write(),
				"upgradeable":        rw.Upgradeable(),
				"all":                rlock.All(b.Mutex(b.name), b.FencedMutex(b.name+":2"), rw.Write()),
				"all of upgradeable": rlock.All(b.Mutex(b.name), rw.Upgradeable(), rw.Read()),
				"quorum":             rlock.Quorum(quorum...),
				"all of a quorum":    rlock.All(b.Mutex(b.name), rlock.Quorum(quorum...)),
			}
			for kind, l := range locks {
				for _, exits := range []bool{false, true} {
					what := fmt.Sprintf("%s of %s, Goexit: %v", hook, kind, exits)
					want := any(hookPanic)
					if exits {
						want = "Goexit"
					}
					h.exits.Store(exits)
					switch hook {
					case "Waiting":
						if kind == "taken for longer" {
							continue
						}
						if exits { // that goroutine is not the caller's
							want = "returned"
						}
						holder := l
						if kind == "read" {
							holder = rw.Write()
						}
						_, unlock, err := holder.Lock(context.Background())
						require.NoError(t, err, what)
						h.on.Store(true)
						calls, ended := h.calls.Load(), make(chan any, 1)
						go func() {
							ended <- outcome(func() { // ends with the Lock
								if _, unlock, err := l.Lock(context.Background()); assert.NoError(t, err) {
									assert.NoError(t, unlock())
								}
							})
						}()
						redistest.Eventually(t, testTimeout, func() bool { return h.calls.Load() > calls }, what)
						if !exits {
							require.Equal(t, want, <-ended, "%s: it waits no longer", what)
						}
						require.NoError(t, unlock(), what)
						if exits {
							require.Equal(t, want, <-ended, what)
						}
					case "Failed":
						over, cancel := context.WithCancel(context.Background())
						cancel()
						h.on.Store(true)
						require.Equal(t, want, outcome(func() { _, _, _ = l.Lock(over) }), what)
					case "Acquired", "Released":
						if kind == "taken for longer" && hook == "Released" {
							continue
						}
						h.on.Store(true)
						require.Equal(t, want, outcome(func() {
							_, err := rlock.DoValue(context.Background(), l, func(context.Context) (int, error) { return 0, nil })
							assert.NoError(t, err)
						}), what)
					}
					h.on.Store(false)
					if kind != "taken for longer" || hook == "Acquired" {
						_, unlock, err := l.TryLock(context.Background(), testTimeout)
						require.NoError(t, err, what)
						if kind != "taken for longer" {
							require.NoError(t, unlock(), what)
						} else {
							_, err := b.Mutex(b.name + ":min").ForceUnlock(context.Background())
							require.NoError(t, err)
							require.ErrorIs(t, unlock(), rlock.ErrLost)
						}
					}
					for _, c := range clients {
						require.Zero(t, c.Stats().Holds, what)
						require.Zero(t, c.Stats().Waiting, what)
					}
				}
			}
			if hook == "Released" || hook == "Acquired" { // in the middle of a Downgrade
				writer, unlock, err := rw.Write().Lock(context.Background())
				require.NoError(t, err)
				h.exits.Store(false)
				h.on.Store(true)
				require.Equal(t, hookPanic, outcome(func() { _, _, _ = rw.Downgrade(writer) }))
				h.on.Store(false)
				_ = unlock()
				require.Zero(t, b.Stats().Holds)
				require.NoError(t, rw.Write().Do(context.Background(), nothing))
			}
		}
	})
}

// The panics of functions that a Client calls on a goroutine of its own are logged, and the next calls are made.
func TestHooksThatPanicAreLogged(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		for _, own := range []bool{true, false} {
			var log lockedBuffer
			to := slog.New(slog.NewTextHandler(&log, nil))
			var renewed, losses atomic.Int32
			o := rlock.Options{WatchdogTimeout: 300 * time.Millisecond, Trace: &rlock.Trace{
				Renewed: func(rlock.RenewedInfo) {
					renewed.Add(1)
					panic("renewed")
				},
				Lost: func(context.Context, rlock.LostInfo) {
					losses.Add(1)
					panic("lost")
				},
			}}
			if own {
				o.Logger = to
			} else {
				old := slog.Default()
				slog.SetDefault(to)
				t.Cleanup(func() { slog.SetDefault(old) })
			}
			b := newFixture(t, o)
			held, unlock, err := b.Mutex(b.name).Lock(context.Background())
			require.NoError(t, err)
			redistest.Eventually(t, testTimeout, func() bool { return renewed.Load() > 1 }, "renewed again")
			for i := range 2 {
				lost, _, err := b.Mutex(fmt.Sprint(b.name, i), rlock.WithLease(time.Millisecond)).Lock(context.Background())
				if err == nil {
					<-lost.Done()
				}
			}
			redistest.Eventually(t, testTimeout, func() bool { return uint64(losses.Load()) == b.Stats().Lost }, "all losses are told")
			require.NoError(t, held.Err())
			require.NoError(t, unlock())
			b.Close()
			require.Regexp(t, `level=ERROR msg="rlock: panic in Options.Trace" panic=renewed stack=.*logger_test.go`, log.String())
			require.Equal(t, int(losses.Load()), strings.Count(log.String(), "panic=lost"))
		}
	})
}
