package faults

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

const (
	manyHolds    = 50_000
	holdWatchdog = 15 * time.Second
	holdPeriod   = holdWatchdog / 3
	holdBytes    = 4 << 10 // of heap; measured: about half
)

// Fault 7 with 1, 2 and 3, G2, G5, G7: 50,000 names held in one process, whose renewals meet cut
// connections, delays, a Redis that stands still, SCRIPT FLUSH and error replies, for 60 s or
// FAULTS_DURATION. No hold is lost, renewals stay batched, and nothing is left after the unlocks.
func TestLoadManyHoldsUnderFaults(t *testing.T) {
	random := rand.New(rand.NewPCG(loadSeed(t), 7))
	s := redistest.Start(t)
	watch := s.Client(t)
	proxy := redistest.StartProxy(t, s.Addr())
	// At first without the proxy, which is part of this process and would count in its memory and time.
	var through atomic.Pointer[string]
	m := &meter{Client: s.Client(t, func(o *rueidis.ClientOption) {
		o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			if via := through.Load(); via != nil {
				addr = *via
			}
			return d.DialContext(ctx, "tcp", addr)
		}
	})}
	client := newClient(t, m, rlock.Options{WatchdogTimeout: holdWatchdog})
	require.NoError(t, client.Mutex("first").Do(t.Context(), func(context.Context) error { return nil })) // connects

	h := takeMany(t, client)
	h.quiet(t, m)

	addr := proxy.Addr()
	through.Store(&addr)
	require.NoError(t, do(t, watch, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Error())
	calls, renewed, failed := m.renewals.Load(), m.renewed.Load(), m.failed.Load()
	began, used := time.Now(), cpu(t)
	(&weather{random: random, s: s, proxy: proxy, watch: watch}).rage(t, loadFor(t, time.Minute), h.requireHeld)
	loadPass(holdPeriod) // a round of renewals in which nothing happens any more
	d := time.Since(began)
	calls, renewed, failed = m.renewals.Load()-calls, m.renewed.Load()-renewed, m.failed.Load()-failed
	t.Logf("%v under faults: %d calls renewed %d holds, of which %d failed; %v of processor time a period, the proxy's included",
		d, calls, renewed-failed, failed, time.Duration(float64(cpu(t)-used)*float64(holdPeriod)/float64(d)))
	h.requireHeld(t)
	n, err := do(t, watch, "DBSIZE").AsInt64()
	require.NoError(t, err)
	require.EqualValues(t, manyHolds, n, "all are held in Redis too")
	// A hold whose call failed is sent alone once, so each failure costs one call more. Those that were
	// sent alone come together again within a period or two.
	require.Less(t, calls, 2*int64(d/holdPeriod+1)*manyHolds/100+failed, "renewals are batched")

	h.releaseAll(t)
	requireEmpty(t, watch, drainPatience)
	silent := m.renewals.Load()
	loadPass(holdPeriod)
	require.Equal(t, silent, m.renewals.Load(), "nothing is renewed after the unlocks")
	client.Close()
	redistest.Eventually(t, drainPatience, func() bool { return libraryGoroutines() == 0 }, "no goroutine after Close")
}

// holds are many held locks.
type holds struct {
	ctxs    []context.Context
	unlocks []rlock.UnlockFunc
}

func takeMany(t *testing.T, client *rlock.Client) *holds {
	t.Helper()
	h := &holds{ctxs: make([]context.Context, manyHolds), unlocks: make([]rlock.UnlockFunc, manyHolds)}
	mutexes := make([]*rlock.Mutex, manyHolds)
	for i := range mutexes {
		mutexes[i] = client.Mutex(fmt.Sprintf("hold:%d", i))
	}
	before, began := measure(), time.Now()
	loadParallel(manyHolds, func(i int) {
		var err error
		h.ctxs[i], h.unlocks[i], err = mutexes[i].Lock(context.Background())
		assert.NoError(t, err)
	})
	heap, _ := measure().per(before, manyHolds)
	t.Logf("%d locks taken in %v; a hold costs %d bytes of heap", manyHolds, time.Since(began), heap)
	require.Less(t, heap, int64(holdBytes))
	require.LessOrEqual(t, libraryGoroutines(), 64, "no goroutine of ours for each hold; some renewals are under way")
	return h
}

// quiet measures what keeping the holds costs while nothing happens. The first period belongs to the
// taking: who was taken at one time is not yet due at one time.
func (h *holds) quiet(t *testing.T, m *meter) {
	t.Helper()
	loadPass(holdPeriod)
	const periods = 2
	calls, used := m.renewals.Load(), cpu(t)
	loadPass(periods * holdPeriod)
	calls, used = m.renewals.Load()-calls, cpu(t)-used
	t.Logf("quiet: %d calls and %v of processor time a period of %v for %d holds", calls/periods, used/periods, holdPeriod, manyHolds)
	require.LessOrEqual(t, calls, int64(periods*manyHolds/100*5/4), "100 in a call; a period is up to a tenth and a bit shorter")
	h.requireHeld(t)
}

func (h *holds) requireHeld(t *testing.T) {
	t.Helper()
	for i, ctx := range h.ctxs {
		require.NoError(t, context.Cause(ctx), "hold %d", i)
	}
}

func (h *holds) releaseAll(t *testing.T) {
	t.Helper()
	began := time.Now()
	loadParallel(manyHolds, func(i int) { assert.NoError(t, h.unlocks[i]()) })
	t.Logf("all unlocked in %v", time.Since(began))
}

// weather is what happens to a server and the way to it.
type weather struct {
	random *rand.Rand
	s      *redistest.Server
	proxy  *redistest.Proxy
	watch  rueidis.Client

	failing atomic.Pointer[string] // the error that renewals get, and some of them only
}

// rage lets faults happen, one at a time, until d is over. None lasts as long as a third of the
// watchdog time.
func (w *weather) rage(t *testing.T, d time.Duration, check func(*testing.T)) {
	t.Helper()
	chance := rand.New(rand.NewPCG(w.random.Uint64(), 1)) // the hooks' own, who run on other goroutines
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
			loadPass(w.upTo(holdPeriod))
			w.proxy.Delay(0)
		},
		"stop": func() {
			w.s.Pause()
			loadPass(w.upTo(holdPeriod * 9 / 10))
			w.s.Resume()
		},
		"flush": func() { assert.NoError(t, do(t, w.watch, "SCRIPT", "FLUSH").Error()) },
		"errors": func() {
			lines := []string{"LOADING Redis is loading the dataset in memory", "BUSY Redis is busy running a script",
				"OOM command not allowed", "READONLY You can't write against a read only replica.", "ERR no such luck"}
			w.failing.Store(&lines[w.random.IntN(len(lines))])
			loadPass(w.upTo(holdPeriod / 2))
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
		loadPass(w.upTo(time.Second))
	}
	t.Log("faults:", strings.TrimPrefix(fmt.Sprint(counts), "map"))
}

func (w *weather) upTo(d time.Duration) time.Duration {
	return time.Duration(w.random.Int64N(int64(d)))
}
