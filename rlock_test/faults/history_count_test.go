package faults

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// The counters of a run. Their names are their kinds.
var (
	countNames  = []string{"semaphore", "latch", "high latch"}
	leasedNames = []string{"permits"}
)

// countHigh is the count of a latch that never opens, so that every countdown has an effect.
const countHigh = 1 << 20

// countCalls collects the calls of all processes since the last peace, and the observations.
type countCalls struct {
	mu    sync.Mutex // guards the following
	calls map[string]map[int64]countEntry
	seen  []countEntry
}

// hear records a line of a process: "call <countCall>", at the begin and the end of a call. It returns false for
// anything else.
func (c *countCalls) hear(peer, line string) bool {
	text, ok := strings.CutPrefix(line, "call\t")
	var call countCall
	if !ok || json.Unmarshal([]byte(text), &call) != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == nil {
		c.calls = make(map[string]map[int64]countEntry)
	}
	if c.calls[peer] == nil {
		c.calls[peer] = make(map[int64]countEntry)
	}
	c.calls[peer][call.ID] = call.Entry
	return true
}

// add adds entries of this process.
func (c *countCalls) add(e ...countEntry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, e...)
}

// killed adjusts the calls of a killed process.
func (c *countCalls) killed(peer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, e := range c.calls[peer] {
		switch {
		case e.Outcome == countFailed:
			e.Outcome = countKilled
		case e.Kind == leasedTake:
			// The lease may have ended before the last time inside: the ctx may be cancelled a little late, and the process
			// did not live to report the loss.
			if e.Last -= int64(histLate); e.Last < e.Return {
				e.Last = 0
			}
		}
		c.calls[peer][id] = e
	}
}

// history returns all calls, and begins a new one.
func (c *countCalls) history() []countEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.seen
	for _, calls := range c.calls {
		for _, e := range calls {
			all = append(all, e)
		}
	}
	c.calls, c.seen = nil, nil
	return all
}

const (
	// A round of mixed faults lasts countRound. For countOutage after it, two processes get no answers, until their calls
	// fail. Then there is peace.
	countRound, countOutage = 4 * time.Second, silence + time.Second
)

// countRun is a run of processes that use some counters, on one server.
type countRun struct {
	*family

	own    *rlock.Client     // of this process
	done   map[countKind]int // calls
	doubts map[countKind]int // of them that failed, or whose process was killed
}

// newCountRun returns a run without processes.
func newCountRun(t *testing.T, names []string, sabotage string, args ...string) *countRun {
	t.Helper()
	f := newFamily(t, workPlan{
		Kinds: names, Each: 2, Seed: faultsSeed(t), Watchdog: time.Second,
		Step: 5 * time.Millisecond, Rest: 30 * time.Millisecond, Sabotage: sabotage,
	}, redistest.Start(t, args...))
	r := &countRun{family: f, done: make(map[countKind]int), doubts: make(map[countKind]int)}
	r.own = newClient(t, f.servers[0].Client(t), rlock.Options{})
	for _, name := range names {
		switch name { // a semaphore is set by its workers
		case "high latch":
			set, err := r.own.CountDownLatch(name).TrySetCount(context.Background(), countHigh)
			require.NoError(t, err)
			require.True(t, set)
		case "permits":
			require.NoError(t, r.own.PermitSemaphore(name).SetPermits(context.Background(), countTotal))
		}
	}
	return r
}

// countSet is the call with which a history states a counter's initial value.
var countSet = map[string]countKind{"semaphore": permSet, "latch": latchSet, "high latch": latchSet, "permits": leasedSet}

// round runs the workers while faults strike, and returns the history until peace, with the counters' final values.
// faults returns the processes it killed.
func (r *countRun) round(faults func() (killed []*workPeer)) []countEntry {
	r.t.Helper()
	for _, name := range r.plan.Kinds {
		n, set := r.counter(name)
		if name == "permits" { // Redis does not yet count expired ones as free
			look, err := r.look(context.Background(), name)
			require.NoError(r.t, err)
			n = look.Got
		}
		if set {
			now := histNow()
			r.calls.add(countEntry{Kind: countSet[name], Name: name, N: n, Got: 1, Call: now, Return: now, Worker: "before"})
		}
	}
	stop := r.observe()
	r.goOn()
	killed := faults()
	for _, victim := range killed {
		r.calls.killed(victim.name)
		r.peers = slices.DeleteFunc(r.peers, func(p *workPeer) bool { return p == victim })
	}
	r.drain(time.Now(), histReturn, "all calls must return after the faults")
	r.ask(r.peers, "quiet", "idle", time.Now(), histReturn, "G9: Close ends all background work")
	for _, victim := range killed { // until the server has received all of the process's commands
		redistest.Eventually(r.t, histReturn, func() bool {
			list, err := do(r.t, r.direct[0], "CLIENT", "LIST").ToString()
			return err == nil && !strings.Contains(list, " name="+victim.name+" ")
		}, "the connections of a killed process must end")
	}
	if len(killed) > 0 && slices.Contains(r.plan.Kinds, "permits") {
		sleep(r.plan.Watchdog + leasedSlack) // until its permits are back
	}
	stop()
	for _, name := range r.plan.Kinds {
		now := histNow()
		r.calls.add(countEntry{Kind: countPeace, Name: name, Call: now, Return: now, Worker: "observer"})
		look, err := r.look(context.Background(), name)
		require.NoError(r.t, err)
		r.calls.add(look)
	}
	history := r.calls.history()
	for _, e := range history {
		r.done[e.Kind]++
		if e.Outcome != countDone {
			r.doubts[e.Kind]++
		}
	}
	return history
}

// right requires the exact sum of permits, unless processes were killed, and restores it. Killed processes lose the
// permits that they held of a plain semaphore: the history limits how many.
func (r *countRun) right(name string, killed bool) {
	r.t.Helper()
	n, _ := r.counter(name)
	switch {
	case name == "permits":
		require.NoError(r.t, r.own.PermitSemaphore(name).SetPermits(context.Background(), countTotal))
	case name == "semaphore" && !killed:
		require.EqualValues(r.t, countTotal, n, "all permits must be free")
	case name == "semaphore" && n != countTotal:
		require.NoError(r.t, r.own.Semaphore(name).AddPermits(context.Background(), countTotal-n))
	}
}

// counter reads a counter from Redis, which must answer.
func (r *countRun) counter(name string) (n int64, set bool) {
	r.t.Helper()
	n, set, err := r.read(context.Background(), name)
	require.NoError(r.t, err)
	return n, set
}

var countLook = map[string]countKind{"semaphore": permLook, "latch": latchLook, "high latch": latchLook, "permits": leasedLook}

func (r *countRun) read(ctx context.Context, name string) (n int64, set bool, err error) {
	rdb := r.direct[0]
	n, err = rdb.Do(ctx, rdb.B().Get().Key(name).Build().Pin()).AsInt64() // pinned as in historyRun.look
	if rueidis.IsRedisNil(err) {
		return 0, false, nil
	}
	return n, err == nil, err
}

// leasedScript reads expiring permits: the number of free ones and the ids of the held ones.
const leasedScript = `
	local t, free, ids = redis.call('time'), tonumber(redis.call('get', KEYS[1]) or 0), {}
	local now, all = t[1] * 1000 + math.floor(t[2] / 1000), redis.call('zrange', KEYS[2], '0', '-1', 'withscores')
	for i = 1, #all, 2 do
		local lives = tonumber(all[i + 1]) > now
		free = free + (lives and 0 or 1)
		ids[#ids + 1] = lives and all[i] or nil
	end
	return {tostring(free), unpack(ids)}`

// look observes a counter.
func (r *countRun) look(ctx context.Context, name string) (e countEntry, err error) {
	e = countEntry{Kind: countLook[name], Name: name, Call: histNow(), Worker: "observer"}
	if name != "permits" {
		e.Got, _, err = r.read(ctx, name)
		e.Return = histNow()
		return e, err
	}
	rdb := r.direct[0]
	texts, err := rdb.Do(ctx, rdb.B().Eval().Script(leasedScript).Numkeys(2).Key(name, leasedKey(name)).Build().Pin()).AsStrSlice()
	e.Return = histNow()
	if err != nil {
		return e, err
	}
	ids := make([]string, len(texts)-1)
	for i, id := range texts[1:] {
		ids[i] = hex.EncodeToString([]byte(id))
	}
	e.IDs = strings.Join(ids, " ")
	e.Got, err = strconv.ParseInt(texts[0], 10, 64)
	return e, err
}

// observe observes the counters in turn, until stop is called.
func (r *countRun) observe() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { // ends with stop
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			<-tick.C
			if e, err := r.look(ctx, r.plan.Kinds[i%len(r.plan.Kinds)]); err == nil { // the server may be down
				r.calls.add(e)
			}
		}
	})
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	r.t.Cleanup(stop)
	return stop
}

// check returns the checker's verdict on a counter, and a function that explains a rejection.
func (r *countRun) check(name string, history []countEntry) (verdict porcupine.CheckResult, why func() string) {
	history = slices.DeleteFunc(slices.Clone(history), func(e countEntry) bool { return e.Name != name })
	model, ops := latchModel, countOperations(history)
	switch name {
	case "semaphore":
		model = permModel
	case "permits":
		model, ops = leasedModel, countOperations(leasedHistory(history, r.plan.Watchdog+histLate))
	}
	return countVerdict(model, ops), func() string { return histExplain(model, ops) }
}

// checks requires that the history is valid for every counter, and that the sums are right.
func (r *countRun) checks(history []countEntry, killed bool) {
	r.t.Helper()
	r.fine()
	for _, name := range r.plan.Kinds {
		r.right(name, killed) // first: it is faster than the checker
		if verdict, why := r.check(name, history); verdict != porcupine.Ok {
			require.Equal(r.t, porcupine.Ok, verdict, "%s:\n%s", name, why())
		}
	}
}

// end ends the processes, and asserts that they leave only the counters and keys that expire.
func (r *countRun) end() {
	r.t.Helper()
	r.ask(r.peers, "end", "closed", time.Now(), 2*histReturn, "G9")
	rdb := r.direct[0]
	channels, err := do(r.t, rdb, "PUBSUB", "CHANNELS").AsStrSlice()
	require.NoError(r.t, err)
	require.Empty(r.t, channels)
	keys, err := do(r.t, rdb, "KEYS", "*").AsStrSlice()
	require.NoError(r.t, err)
	for _, key := range keys {
		if slices.Contains(r.plan.Kinds, key) {
			continue
		}
		require.Regexp(r.t, "^rlock_(sem_requests|latch):", key, "no queue, permit or slot may be left")
		left := remaining(r.t, rdb, key)
		const hasExpired = -2 * time.Millisecond // by now
		require.True(r.t, left == hasExpired || 0 < left && left <= countRecord, "%s must expire in time, not in %v", key, left)
	}
	for _, p := range r.peers {
		require.NoError(r.t, p.stdin.Close())
	}
	r.t.Logf("%d processes, calls: %v, failed: %v", r.number, r.done, r.doubts)
}

// countRecord is the longest expiry of a record of calls, that of a semaphore. A latch's record expires two seconds sooner.
const countRecord = 122 * time.Second

// Counters under random faults, while processes are killed. Each permit is taken and given back once, and only killed
// processes lose permits of a plain semaphore. Each countdown counts once, and no Await returns early. All calls return,
// and nothing is left. G4 to G6, G9.
func TestMixOfFaultsCounters(t *testing.T) {
	t.Parallel()
	mixOfCounters(t, countNames, func(doubts map[countKind]int) bool {
		return doubts[permAcquire] > 0 && doubts[permAdd] > 0 && doubts[latchDown] > 0
	})
}

// The same for expiring permits: there are never too many, no two share a number, and no holder loses one without a
// cancelled ctx. The permits of a killed process are back within the watchdog time. G1, G2, G4 to G6, G9.
func TestMixOfFaultsPermits(t *testing.T) {
	t.Parallel()
	mixOfCounters(t, leasedNames, func(doubts map[countKind]int) bool {
		return doubts[leasedTake] > 0 && doubts[leasedAway] > 0 && doubts[leasedSet]+doubts[permAdd] > 0
	})
}

// mixOfCounters goes on until enough calls had no answer.
func mixOfCounters(t *testing.T, names []string, enough func(doubts map[countKind]int) bool) {
	t.Helper()
	const processes = 3
	r := newCountRun(t, names, "", "--appendonly", "yes", "--appendfsync", "always")
	r.startProcesses(processes, r.viaProxies)
	nemesis := r.nemesis(nil)
	network, server := mixLanes(r.plan.Watchdog)
	maps.DeleteFunc(network, func(fault string, _ mixRange) bool {
		return strings.Contains(fault, "hand-off") || strings.Contains(fault, "grant")
	})
	network["lost message"] = mixRange{200 * time.Millisecond, 800 * time.Millisecond}
	delete(server, "delete")
	rng := rand.New(rand.NewPCG(r.plan.Seed, 0))
	began, d := time.Now(), faultsDuration(t, 25*time.Second)
	for round := 0; round < 2 || time.Since(began)+countRound+countOutage < d || !enough(r.doubts); round++ {
		require.Less(t, time.Since(began), d+histPatience, "calls without an answer: %v", r.doubts)
		one, other := mixSchedule(rng, network, processes, countRound), mixSchedule(rng, server, processes, countRound)
		t.Logf("network: %v\nserver: %v", one, other)
		kills, when := round%2 == 1, time.Duration(rng.Int64N(int64(countRound)))
		last := processes - 1
		history := r.round(func() (killed []*workPeer) {
			var wg sync.WaitGroup
			if kills {
				killed = r.peers[last:]
				wg.Go(func() {
					sleep(when)
					killed[0].kill()
				})
			}
			nemesis.run(one, other)
			for i, fault := range []string{"lost replies", "lost requests"} {
				wg.Go(func() { nemesis.strike(mixStep{Fault: fault, Proxy: (round + i) % 2, For: countOutage}) })
			}
			wg.Wait()
			return slices.Clone(killed)
		})
		r.checks(history, kills)
		if kills {
			r.start(workClient{Addr: r.servers[0].Addr(), Via: r.proxies[last].Addr()})
			r.ready(r.peers[last:])
		}
	}
	r.end()
}

// Faulty clients give back or count down twice or not at all, or treat a refusal as a grant. The checker rejects the
// histories of all counters. G4 to G6.
func TestHistoryRejectsWrongCounts(t *testing.T) {
	t.Parallel()
	for _, sabotage := range []string{countTwice, countNever, countBelief} {
		t.Run(sabotage, func(t *testing.T) {
			t.Parallel()
			rejectsCounts(t, countNames, sabotage)
		})
	}
}

// The same for expiring permits, with further faults: holders that ignore their ctx, leases that end too early, shared
// numbers, and a returned permit that is held again. G1, G2, G4 to G6.
func TestHistoryRejectsWrongPermits(t *testing.T) {
	t.Parallel()
	for _, sabotage := range []string{countTwice, countNever, countBelief, histDeaf, leasedShort, leasedSlot, leasedAgain} {
		t.Run(sabotage, func(t *testing.T) {
			t.Parallel()
			rejectsCounts(t, leasedNames, sabotage)
		})
	}
}

// rejectsCounts requires that the checker rejects each counter.
func rejectsCounts(t *testing.T, names []string, sabotage string) {
	t.Helper()
	r := newCountRun(t, names, sabotage)
	r.startProcesses(2, r.straight)
	accepted := slices.Clone(names) // not rejected in any round so far
	for end := time.Now().Add(histPatience); len(accepted) > 0; {
		require.True(t, time.Now().Before(end), "%v: accepted", accepted)
		history := r.round(func() []*workPeer {
			sleep(time.Second)
			return nil
		})
		accepted = slices.DeleteFunc(accepted, func(name string) bool {
			verdict, _ := r.check(name, history)
			return verdict == porcupine.Illegal
		})
	}
}

// Fault 5: processes use a semaphore, expiring permits, or latches, while one to three of four are killed at a time. The
// sums are exact each time: a plain semaphore loses just the permits of killed processes, expiring permits are back
// within the watchdog time, and each countdown counts. The others go on, and nothing is left. G1, G2, G4 to G6, G9.
func TestSoakOfCounters(t *testing.T) {
	t.Parallel()
	for _, names := range [][]string{{"semaphore"}, {"permits"}, {"latch", "high latch"}} {
		t.Run(names[0], func(t *testing.T) {
			t.Parallel()
			r := newCountRun(t, names, "")
			rng := rand.New(rand.NewPCG(r.plan.Seed, 0))
			all, bursts := 0, 0
			burst := func(kills int) {
				r.startProcesses(4, r.straight)
				history := r.round(func() (killed []*workPeer) {
					sleep(500*time.Millisecond + time.Duration(rng.Int64N(int64(time.Second))))
					for _, i := range rng.Perm(len(r.peers) - 1)[:kills] { // not the first process: it drains, see useSemaphore
						killed = append(killed, r.peers[1+i])
						killed[len(killed)-1].kill()
						sleep(time.Duration(rng.Int64N(int64(100 * time.Millisecond))))
					}
					return killed
				})
				r.checks(history, kills > 0)
				all, bursts = all+kills, bursts+1
			}
			for end := time.Now().Add(faultsDuration(t, 2*time.Minute)); time.Now().Before(end); {
				burst(1 + rng.IntN(3))
			}
			burst(0)
			r.end()
			t.Logf("%d bursts, %d processes killed", bursts, all)
		})
	}
}
