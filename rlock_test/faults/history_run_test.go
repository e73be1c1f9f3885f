package faults

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// historyRun is one run: a server behind proxies, workers of this process and other processes as their
// clients, and an observer that reads the keys directly.
type historyRun struct {
	t       *testing.T
	plan    histPlan
	server  *redistest.Server
	proxies []*redistest.Proxy
	crews   []*histCrew
	clients []*rlock.Client
	peers   []*peer
	direct  rueidis.Client
	log     *histLog // records of the observer and the nemesis
	watched func()   // stops the observer

	turn, deleted int // see deleteOne
}

// newHistoryRun starts a run with the given numbers of clients in this process and of other processes.
func newHistoryRun(t *testing.T, plan histPlan, clients, processes int, args ...string) *historyRun {
	t.Helper()
	return newHistoryRunOn(t, redistest.Start(t, args...), plan, clients, processes)
}

// histRunning bounds how many runs go on at a time: each alone could keep the machine busy.
var histRunning = make(chan struct{}, runtime.GOMAXPROCS(0))

func newHistoryRunOn(t *testing.T, server *redistest.Server, plan histPlan, clients, processes int) *historyRun {
	t.Helper()
	histRunning <- struct{}{}
	t.Cleanup(func() { <-histRunning })
	b := &historyRun{t: t, server: server, log: newHistLog()}
	plan.Dir = t.TempDir()
	for i, name := range plan.Names {
		if i%2 == 0 && plan.Kind == "" {
			plan.Fenced = append(plan.Fenced, name)
		}
	}
	b.direct = b.server.Client(t)
	bounds := histBounds(plan.Seed, clients+processes)
	for i := range clients + processes {
		proxy := redistest.StartProxy(t, b.server.Addr())
		b.proxies = append(b.proxies, proxy)
		mine := plan
		mine.Addr, mine.First, mine.HandOff = proxy.Addr(), 1+i*plan.Workers, bounds[i]
		if i >= clients {
			text, err := json.Marshal(mine)
			require.NoError(t, err)
			b.peers = append(b.peers, startPeerAs(t, "history", string(text)))
			continue
		}
		log := newHistLog()
		rdb := redistest.Dial(t, proxy.Addr())
		if plan.Messages != "" {
			rdb = redistest.Split{Client: rdb, Messages: redistest.Dial(t, plan.Messages)}
		}
		c := newClient(t, histRedis{rdb, log, plan.Sabotage}, mine.options())
		b.clients = append(b.clients, c)
		b.crews = append(b.crews, newHistCrew(mine, log, c))
	}
	b.plan = plan
	for _, c := range b.crews {
		c.start()
	}
	for _, p := range b.peers {
		p.send(t, "go on")
	}
	b.observe()
	return b
}

// observe reads the keys in turn, until watched is called.
func (b *historyRun) observe() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	b.watched = func() {
		cancel()
		<-done
	}
	b.t.Cleanup(b.watched)
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				b.look(ctx, b.plan.Names[i%len(b.plan.Names)])
			}
		}
	}()
}

func (b *historyRun) look(ctx context.Context, name string) {
	e := histEntry{Kind: histLook, Name: name, Call: histNow()}
	// Pinned: rueidis repeats a command after a lost connection, and may recycle it while still writing it to the old one.
	reply := b.direct.Do(ctx, b.direct.B().Hgetall().Key(name).Build().Pin())
	if b.plan.Kind == histRW {
		if hash, err := reply.AsStrMap(); err == nil {
			e.Return, e.Seen = histNow(), rwSeen(hash)
			b.log.add(e)
		}
		return
	}
	hash, err := reply.AsIntMap()
	e.Return = histNow()
	if err != nil {
		return // server down, or run over
	}
	for owner, n := range hash {
		e.Owner, e.Count = owner, int(n)
	}
	if len(hash) > 1 {
		e.Count = -1
	}
	b.log.add(e)
}

// histPatience is how long a run waits, on a slow machine and beside other runs, for the events that it must have.
const histPatience = 5 * time.Minute

// goOn waits until each event has happened so often to the workers and Clients of this process.
func (b *historyRun) goOn(events map[histEvent]int64) {
	b.t.Helper()
	redistest.Eventually(b.t, histPatience, func() bool {
		total := make(map[histEvent]int64) // without the witness's maps, which belong to the workers
		for i, c := range b.crews {
			c.count(func(t *histTally) { (&histTally{Events: total}).add(histTally{Events: t.Events}) })
			stats := b.clients[i].Stats()
			total[handOffs], total[grants], total[kept] = total[handOffs]+int64(stats.HandOffs), total[grants]+int64(stats.Grants), total[kept]+int64(stats.Kept)
		}
		for e, n := range events {
			if total[e] < n {
				return false
			}
		}
		return true
	}, fmt.Sprintf("all must happen: %v", events))
}

// missed is a lower bound of the witness's lost updates so far.
func (b *historyRun) missed() (n int64) {
	b.t.Helper()
	for i, name := range b.plan.Names {
		var written int64 // read first: a concurrent write lowers the result
		for _, c := range b.crews {
			c.count(func(t *histTally) { written += t.Written[name] })
		}
		counted, err := readHistCounter(filepath.Join(b.plan.Dir, strconv.Itoa(i)))
		require.NoError(b.t, err)
		if counted > 0 { // 0 while a worker writes the file
			n += max(0, written-counted)
		}
	}
	return n
}

// forgeries counts the refused hand-offs for which the clients of this process got a forged success.
func (b *historyRun) forgeries() (n int64) {
	for _, c := range b.crews {
		c.log.mu.Lock()
		n += c.log.forged
		c.log.mu.Unlock()
	}
	return n
}

// soFar returns the entries of this process's workers.
func (b *historyRun) soFar() (all []histEntry) {
	for _, c := range b.crews {
		c.log.mu.Lock()
		all = append(all, c.log.entries...)
		c.log.mu.Unlock()
	}
	return all
}

// seen counts the entries of a kind by this process's workers.
func (b *historyRun) seen(kind histKind) (n int) {
	for _, e := range b.soFar() {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// handsOff reports whether every client must have handed locks off.
func (b *historyRun) handsOff() bool {
	return b.plan.Kind == "" && b.plan.Workers > 2 && !b.plan.Spoken
}

// end stops the workers and returns their reports. It first waits for hand-offs of each client of this process.
func (b *historyRun) end() []histReport {
	b.t.Helper()
	for i, c := range b.clients {
		redistest.Eventually(b.t, histPatience, func() bool { return !b.handsOff() || c.Stats().HandOffs >= 10 }, fmt.Sprintf("client %d: hand-offs", i))
	}
	for _, p := range b.peers {
		p.send(b.t, "go on")
	}
	var reports []histReport
	for _, c := range b.crews {
		reports = append(reports, c.end())
	}
	for _, p := range b.peers {
		var r histReport
		require.NoError(b.t, json.Unmarshal([]byte(p.next(b.t, 2*histReturn, "the report")), &r))
		reports = append(reports, r)
	}
	b.watched()
	for _, r := range reports {
		require.Empty(b.t, r.Error)
	}
	return reports
}

// clean asserts that a run has left nothing, and that each lock can be acquired at once.
func (b *historyRun) clean() {
	b.t.Helper()
	// A release that did not reach Redis is repeated until the lease ends.
	redistest.Eventually(b.t, 10*time.Second+2*b.plan.Watchdog, func() bool {
		keys, err := do(b.t, b.direct, "KEYS", "*").AsStrSlice()
		for _, key := range keys {
			if !strings.HasPrefix(key, "redisson_lock_token:") { // these stay
				return false
			}
		}
		channels, err2 := do(b.t, b.direct, "PUBSUB", "CHANNELS").AsStrSlice()
		channels = slices.DeleteFunc(channels, isEar) // end with their Clients
		return err == nil && err2 == nil && len(channels) == 0
	}, "G5: no key or channel may be left")
	for i, c := range b.clients {
		for _, name := range b.plan.Names {
			require.NoError(b.t, b.plan.mutex(c, name).TryDo(context.Background(), patience, nothing), "client %d, %s: must get the lock", i, name)
		}
	}
	for _, c := range b.clients {
		c.Close()
	}
}

// check asserts that the history is that of a correct lock, and that the witness lost no updates.
func (b *historyRun) check(reports []histReport) {
	b.t.Helper()
	total := b.sum(reports)
	history := b.history(reports)
	b.verdict(porcupine.Ok, history)
	if len(total.Straddled) == 0 {
		require.Zero(b.t, total.Events[torn], "G1: readers saw a writer")
	}
	require.Empty(b.t, histReused(history), "I3: owners must not be reused")
	for i, name := range b.plan.Names {
		counted, err := readHistCounter(filepath.Join(b.plan.Dir, strconv.Itoa(i)))
		require.NoError(b.t, err)
		if !slices.Contains(b.plan.Unguard, name) && total.Straddled[name] == 0 {
			require.Equal(b.t, total.Written[name], counted, "G1: lost updates of %s", name)
		}
	}
	b.t.Logf("%d entries: %+v", len(history), total)
}

// verdict asserts the checker's result, and explains an unexpected rejection.
func (b *historyRun) verdict(want porcupine.CheckResult, history []histEntry) {
	b.t.Helper()
	got := histCheck(b.plan.model(), history)
	explained := ""
	if got != want && want == porcupine.Ok {
		explained = histExplain(b.plan.model(), histOperations(history))
	}
	require.Equal(b.t, want, got, explained)
}

// history joins the reports and the observer's log, without some kinds of entries.
func (b *historyRun) history(reports []histReport, without ...histKind) []histEntry {
	return slices.DeleteFunc(histMerge(append(reports, b.log.report())...), func(e histEntry) bool { return slices.Contains(without, e.Kind) })
}

func (b *historyRun) sum(reports []histReport) histTally {
	total := newHistTally()
	for _, r := range reports {
		total.add(r.Tally)
	}
	return total
}

// lost counts the witness's lost updates.
func (b *historyRun) lost(total histTally) int64 {
	b.t.Helper()
	var lost int64
	for i, name := range b.plan.Names {
		counted, err := readHistCounter(filepath.Join(b.plan.Dir, strconv.Itoa(i)))
		require.NoError(b.t, err)
		lost += total.Written[name] - counted
	}
	return lost
}

func histNames(t *testing.T, n int) []string {
	t.Helper()
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s:%d", redistest.Name(t), i)
	}
	return names
}

// histExplain shows where the checker got stuck. For each name with a rejected history, it prints the end of the
// longest order found, the state there, and the operations of which none can come next.
func histExplain(model porcupine.Model, history []porcupine.Operation) string {
	var text strings.Builder
	for i, part := range model.Partition(history) {
		verdict, info := porcupine.CheckOperationsVerbose(model, part, time.Minute)
		if verdict == porcupine.Ok {
			continue
		}
		var longest []porcupine.Operation
		for _, try := range info.PartialLinearizationsOperations()[0] {
			if len(try) > len(longest) {
				longest = try
			}
		}
		began := slices.MinFunc(part, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) }).Call
		line := func(op porcupine.Operation) {
			fmt.Fprintf(&text, "    %11.3f to %11.3f ms: worker %d: %s\n",
				float64(op.Call-began)/1e6, float64(op.Return-began)/1e6, op.ClientId, model.DescribeOperation(op.Input, nil))
		}
		fmt.Fprintf(&text, "%d: %v after %d of %d\n", i, verdict, len(longest), len(part))
		state := model.Init()
		done := make(map[any]int)
		for i, op := range longest {
			_, state = model.Step(state, op.Input, nil)
			done[op.Input]++
			if i >= len(longest)-10 {
				line(op)
			}
		}
		fmt.Fprintf(&text, "  state %s; then none of\n", model.DescribeState(state))
		slices.SortFunc(part, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
		shown := 0
		for _, op := range part {
			if done[op.Input]--; done[op.Input] < 0 && shown < 12 {
				shown++
				line(op)
			}
		}
	}
	return text.String()
}
