package faults

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

const (
	manyHolds    = 50_000
	holdWatchdog = 15 * time.Second
	holdPeriod   = holdWatchdog / 3
	holdBytes    = 4 << 10 // heap per hold; measured: about half

	// clearTime without a stall suffices to renew every hold: the longest backoff, and some hundred calls.
	clearTime  = 1500 * time.Millisecond
	toldWithin = 250 * time.Millisecond // after the end of the trusted time, without stalls
)

// Fault 7 with 1, 2 and 3, G2, G5, G7: one process holds 50,000 names. For 60 s or FAULTS_DURATION, its renewals meet cut
// connections, delays, a stopped Redis, SCRIPT FLUSH and error replies. No hold is lost, renewals stay batched, and
// nothing is left after the unlocks.
//
// On an overloaded machine, or after several stops in a row, no renewal of a hold may reach Redis. Such a loss must be
// reported in time. It is accepted only if, after the renewal was due, this process and Redis never ran for clearTime
// without a stall: see holds.judge.
func TestLoadManyHoldsUnderFaults(t *testing.T) {
	random := rand.New(rand.NewPCG(faultsSeed(t), 7))
	s := redistest.Start(t)
	watch := s.Client(t)
	proxy := redistest.StartProxy(t, s.Addr())
	// At first without the proxy: it is in this process, and would add to its memory and CPU time.
	var through atomic.Pointer[string]
	m := &meter{Client: s.Client(t, func(o *rueidis.ClientOption) {
		o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			if via := through.Load(); via != nil {
				addr = *via
			}
			return d.DialContext(ctx, "tcp", addr)
		}
	})}
	h := newHolds(watchStalls(t, s))
	m.onGranted = h.onGranted
	client := newClient(t, m, rlock.Options{WatchdogTimeout: holdWatchdog})
	require.NoError(t, client.Mutex("first").Do(t.Context(), func(context.Context) error { return nil })) // connects

	h.take(t, client)
	h.quiet(t, m)

	addr := proxy.Addr()
	through.Store(&addr)
	require.NoError(t, do(t, watch, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Error())
	calls, renewed, failed := m.renewals.Load(), m.renewed.Load(), m.failed.Load()
	began, used := time.Now(), cpu(t)
	(&weather{random: random, s: s, proxy: proxy, watch: watch}).rage(t, faultsDuration(t, time.Minute), h.judge)
	sleep(holdPeriod) // a round of renewals without faults
	d := time.Since(began)
	calls, renewed, failed = m.renewals.Load()-calls, m.renewed.Load()-renewed, m.failed.Load()-failed
	t.Logf("%v under faults: %d calls renewed %d holds, and failed for %d; CPU time per period, with the proxy: %v",
		d, calls, renewed-failed, failed, time.Duration(float64(cpu(t)-used)*float64(holdPeriod)/float64(d)))
	h.judge(t)
	n, err := do(t, watch, "DBSIZE").AsInt64()
	require.NoError(t, err)
	require.LessOrEqual(t, n, int64(manyHolds))
	require.GreaterOrEqual(t, n, int64(manyHolds-h.lost), "all others must be held in Redis too")
	// After a failed call each of its holds is sent alone once: one more call per failure. Within a period or two they
	// share calls again.
	require.Less(t, calls, 2*int64(d/holdPeriod+1)*manyHolds/100+failed, "renewals must be batched")

	h.releaseAll(t)
	requireEmpty(t, watch, drainPatience)
	silent := m.renewals.Load()
	sleep(holdPeriod)
	require.Equal(t, silent, m.renewals.Load(), "no renewal may follow the unlocks")
	client.Close()
}

// holds are many held locks.
type holds struct {
	stalls  *stalls
	ctxs    []context.Context
	unlocks []rlock.UnlockFunc
	stops   []func() bool // of the AfterFuncs of ctxs

	// Per hold, as time since epoch; 0: not yet.
	epoch    time.Time
	sent     []atomic.Int64 // when the last successful acquire or renewal was sent
	answered []atomic.Int64 // when it was answered
	before   []atomic.Int64 // when the previous one was sent
	told     []atomic.Int64 // when ctx was cancelled

	judged []bool
	lost   int
}

func newHolds(w *stalls) *holds {
	return &holds{
		stalls: w, epoch: time.Now(),
		ctxs: make([]context.Context, manyHolds), unlocks: make([]rlock.UnlockFunc, manyHolds), stops: make([]func() bool, manyHolds),
		sent: make([]atomic.Int64, manyHolds), answered: make([]atomic.Int64, manyHolds), before: make([]atomic.Int64, manyHolds),
		told: make([]atomic.Int64, manyHolds), judged: make([]bool, manyHolds),
	}
}

const holdName = "hold:"

func (h *holds) onGranted(name string, sent time.Time) {
	number, ok := strings.CutPrefix(name, holdName)
	i, err := strconv.Atoi(number)
	if !ok || err != nil || h.told[i].Load() != 0 { // ignores successes after the loss
		return
	}
	h.before[i].Store(h.sent[i].Load()) // a hold is in only one call at a time
	h.sent[i].Store(int64(sent.Sub(h.epoch)))
	h.answered[i].Store(int64(time.Since(h.epoch)))
}

func (h *holds) take(t *testing.T, client *rlock.Client) {
	t.Helper()
	mutexes := make([]*rlock.Mutex, manyHolds)
	for i := range mutexes {
		mutexes[i] = client.Mutex(holdName + strconv.Itoa(i))
	}
	before, began := measure(), time.Now()
	loadParallel(manyHolds, func(i int) {
		var err error
		h.ctxs[i], h.unlocks[i], err = mutexes[i].Lock(context.Background())
		assert.NoError(t, err)
		h.stops[i] = context.AfterFunc(h.ctxs[i], func() { h.told[i].Store(int64(time.Since(h.epoch))) })
	})
	heap, _ := measure().per(before, manyHolds)
	t.Logf("%d locks taken in %v; heap per hold: %d bytes", manyHolds, time.Since(began), heap)
	require.Less(t, heap, int64(holdBytes))
}

// quiet measures the cost of the holds without faults. It skips the first period, when holds taken at the same time are
// not yet due at the same time.
func (h *holds) quiet(t *testing.T, m *meter) {
	t.Helper()
	sleep(holdPeriod)
	const periods = 2
	calls, used := m.renewals.Load(), cpu(t)
	sleep(periods * holdPeriod)
	calls, used = m.renewals.Load()-calls, cpu(t)-used
	t.Logf("quiet: %d calls and %v of CPU time per period of %v for %d holds", calls/periods, used/periods, holdPeriod, manyHolds)
	require.LessOrEqual(t, calls, int64(periods*manyHolds/100*5/4), "100 holds per call; a period may be a little over a tenth shorter")
	h.judge(t)
}

// judge requires that the holds lost since the last call were reported in time (G2), and could not have been renewed.
func (h *holds) judge(t *testing.T) {
	t.Helper()
	var fresh []int
	for i, ctx := range h.ctxs {
		if ctx.Err() != nil && !h.judged[i] {
			fresh = append(fresh, i)
			h.judged[i] = true
			redistest.Eventually(t, drainPatience, func() bool { return h.told[i].Load() != 0 }, "its AfterFunc must run")
		}
	}
	if len(fresh) == 0 {
		return
	}
	h.lost += len(fresh)
	h.stalls.settle(t)
	var run, piece time.Duration
	for _, i := range fresh {
		at := func(of []atomic.Int64) time.Time { return h.epoch.Add(time.Duration(of[i].Load())) }
		sent, told := at(h.sent), at(h.told)
		end := sent.Add(holdWatchdog)
		if told.Before(end) {
			// The renewal was answered, but the previous lease ended before the client had processed the reply.
			unheard, _ := h.stalls.clear(span{at(h.answered), told})
			require.Less(t, unheard, toldWithin, "hold %d was lost too early", i)
			sent = at(h.before)
			end = sent.Add(holdWatchdog)
		}
		var loss *rlock.LostError
		require.ErrorAs(t, context.Cause(h.ctxs[i]), &loss)
		if loss.Reason == rlock.LostGone { // ended in Redis first
			require.False(t, told.Before(end), "hold %d ended in Redis too early", i)
		}
		late, _ := h.stalls.clear(span{end, told})
		require.Less(t, late, toldWithin, "the loss of hold %d was reported late", i)
		total, longest := h.stalls.clear(span{sent.Add(holdPeriod), end})
		require.Less(t, longest, clearTime, "hold %d could have been renewed", i)
		run, piece = max(run, total), max(piece, longest)
	}
	t.Logf("%d holds lost; once they were due, this process and Redis ran for %v at most, %v without a stall",
		len(fresh), run, piece)
}

func (h *holds) releaseAll(t *testing.T) {
	t.Helper()
	for _, stop := range h.stops {
		stop()
	}
	began := time.Now()
	loadParallel(manyHolds, func(i int) {
		if err := h.unlocks[i](); h.judged[i] {
			assert.ErrorIs(t, err, rlock.ErrLost)
		} else {
			assert.NoError(t, err)
		}
	})
	t.Logf("all unlocked in %v, except %d lost holds", time.Since(began), h.lost)
}

// weather makes faults of a server and the connections to it.
type weather struct {
	random *rand.Rand
	s      *redistest.Server
	proxy  *redistest.Proxy
	watch  rueidis.Client

	failing atomic.Pointer[string] // the error reply to a quarter of the calls; nil: none
}

// rage makes faults, one at a time, for the time d. Each is shorter than a third of the watchdog time.
func (w *weather) rage(t *testing.T, d time.Duration, check func(*testing.T)) {
	t.Helper()
	chance := rand.New(rand.NewPCG(w.random.Uint64(), 1)) // for the hooks, which run on other goroutines
	w.proxy.OnRequest(func(cmd []string) redistest.Action {
		if line := w.failing.Load(); line != nil && cmd[0] == "EVALSHA" && chance.IntN(4) == 0 {
			return redistest.Fail(*line)
		}
		return redistest.Pass
	})
	faults := map[string]func(){
		"cut": w.proxy.CutAll,
		"delay": func() {
			w.proxy.Delay(100 * time.Millisecond)
			sleep(w.upTo(holdPeriod))
			w.proxy.Delay(0)
		},
		"stop": func() {
			w.s.Pause()
			sleep(w.upTo(holdPeriod * 9 / 10))
			w.s.Resume()
		},
		"flush": func() { assert.NoError(t, do(t, w.watch, "SCRIPT", "FLUSH").Error()) },
		"errors": func() {
			lines := []string{"LOADING Redis is loading the dataset in memory", "BUSY Redis is busy running a script",
				"OOM command not allowed", "READONLY You can't write against a read only replica.", "ERR no such luck"}
			w.failing.Store(&lines[w.random.IntN(len(lines))])
			sleep(w.upTo(holdPeriod / 2))
			w.failing.Store(nil)
		},
	}
	names := []string{"cut", "delay", "stop", "flush", "errors"}
	counts := make(map[string]int)
	for end := time.Now().Add(d); time.Now().Before(end); {
		name := names[w.random.IntN(len(names))]
		faults[name]()
		counts[name]++
		check(t)
		sleep(w.upTo(time.Second))
	}
	t.Log("faults:", strings.TrimPrefix(fmt.Sprint(counts), "map"))
}

func (w *weather) upTo(d time.Duration) time.Duration {
	return time.Duration(w.random.Int64N(int64(d)))
}
