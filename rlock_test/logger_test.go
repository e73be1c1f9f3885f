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

	"github.com/go-rlock/rlock/internal/testing/redistest"
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
		runVirtual(t, way, func(t *testing.T, b fixture) {
			j, _ := newJam(t)
			o := j.ways()[way]
			o.WatchdogTimeout = shortWatchdog
			c := newClient(t, b.rdb, o)
			fixed := rlock.WithLease(500 * time.Millisecond)
			renewed := locked(t, c.Mutex(b.name))
			<-locked(t, c.Mutex(b.name+":lost", fixed)).ctx.Done()
			<-j.hangs

			later := locked(t, c.Mutex(b.name+":later", fixed))
			awaitEnd(t, later.ctx)
			require.ErrorIs(t, context.Cause(later.ctx), rlock.ErrLost)
			require.ErrorIs(t, later.unlock(), rlock.ErrLost)
			sleep(shortWatchdog * 3 / 2)
			require.NoError(t, renewed.ctx.Err())
			refusalOf(t, b.Mutex(b.name), 0) // renewed
			refusalOf(t, c.Mutex(b.name), 50*time.Millisecond)
			require.NoError(t, renewed.unlock())
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
		lost := locked(t, v.handle(rlock.WithLease(200*time.Millisecond)))
		awaitEnd(t, lost.ctx)
		require.ErrorIs(t, lost.unlock(), rlock.ErrLost)
		<-j.hangs
		held := locked(t, v)
		sleep(shortWatchdog * 3 / 2)
		require.NoError(t, held.ctx.Err())
		require.NoError(t, held.unlock())
		for _, c := range v.clients {
			require.NoError(t, within(t, async(func() error { c.Close(); return nil }), testTimeout))
		}
	})
}

// G2: all sections whose lease is over are cancelled before the first line of the log is written, and each loss is in the log, or counted
// there as dropped.
func TestLossesAreToldBeforeTheyAreLogged(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		j, goOn := newJam(t)
		c := newClient(t, b.rdb, rlock.Options{Logger: slog.New(j)})
		const n = 1500 // more than lines are kept
		m := make([]rlock.Locker, n)
		for i := range m {
			m[i] = c.Mutex(fmt.Sprintf("{%s}:%d", b.name, i), rlock.WithLease(time.Second))
		}
		var ends sync.WaitGroup
		for i := 0; i < n; i += 500 {
			ctx, _ := enter(t, context.Background(), rlock.All(m[i:i+500]...))
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
	for _, hook := range []string{"Waiting", "Acquired", "Failed", "Released"} {
		for want, exits := range map[any]bool{hookPanic: false, "Goexit": true} {
			redistest.RunVirtual(t, fmt.Sprint(hook, "/", want), func(t *testing.T) {
				var h hookFails
				h.exits.Store(exits)
				o := rlock.Options{Trace: h.traces()[hook]}
				b := newFixture(t, o)
				var quorum []rlock.Locker
				clients := []*rlock.Client{b.Client}
				for range 3 {
					c := newClient(t, redistest.Start(t).Client(t), o)
					clients, quorum = append(clients, c), append(quorum, c.Mutex(b.name))
				}
				rw := b.RWMutex(b.name + ":rw")
				section := func(l rlock.Locker) func() {
					return func() { assert.NoError(t, do(context.Background(), l, nothing)) }
				}
				for kind, l := range map[string]rlock.Locker{
					"mutex":              b.Mutex(b.name),
					"fenced":             b.FencedMutex(b.name),
					"fair":               b.FairMutex(b.name + ":fair"),
					"read":               rw.Read(),
					"write":              rw.Write(),
					"upgradeable":        rw.Upgradeable(),
					"all":                rlock.All(b.Mutex(b.name), b.FencedMutex(b.name+":2"), rw.Write()),
					"all of upgradeable": rlock.All(b.Mutex(b.name), rw.Upgradeable(), rw.Read()),
					"quorum":             rlock.Quorum(quorum...),
					"all of a quorum":    rlock.All(b.Mutex(b.name), rlock.Quorum(quorum...)),
				} {
					switch hook {
					case "Waiting":
						holder := l
						if kind == "read" {
							holder = rw.Write()
						}
						held := locked(t, holder)
						h.on.Store(true)
						calls, ended := h.calls.Load(), make(chan any, 1)
						go func() { ended <- outcome(section(l)) }() // ends with the section
						redistest.Eventually(t, testTimeout, func() bool { return h.calls.Load() > calls }, kind)
						if exits { // that goroutine is not the caller's
							require.NoError(t, held.unlock(), kind)
							require.Equal(t, "returned", <-ended, kind)
						} else {
							require.Equal(t, want, <-ended, "%s: it waits no longer", kind)
							require.NoError(t, held.unlock(), kind)
						}
					case "Failed":
						h.on.Store(true)
						require.Equal(t, want, outcome(func() { _, _, _ = l.Lock(canceled()) }), kind)
					default:
						h.on.Store(true)
						require.Equal(t, want, outcome(section(l)), kind)
					}
					h.on.Store(false)
					require.NoError(t, locked(t, l).unlock(), kind)
					for _, c := range clients {
						require.Zero(t, c.Stats().Holds, kind)
						require.Zero(t, c.Stats().Waiting, kind)
					}
				}
				if hook == "Acquired" {
					taken := b.Mutex(b.name+":min", rlock.WithMinHold(time.Hour))
					h.on.Store(true)
					require.Equal(t, want, outcome(section(taken)))
					h.on.Store(false)
					locked(t, taken) // which was not left taken
				}
				if hook == "Released" || hook == "Acquired" { // in the middle of a Downgrade
					writer := locked(t, rw.Write())
					h.on.Store(true)
					require.Equal(t, want, outcome(func() { _, _, _ = rw.Downgrade(writer.ctx) }))
					h.on.Store(false)
					_ = writer.unlock()
					require.NoError(t, locked(t, rw.Write()).unlock())
				}
			})
		}
	}
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
			held, unlock := enter(t, context.Background(), b.Mutex(b.name))
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
