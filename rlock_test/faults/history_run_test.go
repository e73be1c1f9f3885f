package faults

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// historyRun is a family whose locks of one kind have a history, and an observer that reads their keys directly.
type historyRun struct {
	*family

	log     *histLog // records of the observer and the nemesis
	watched func()   // stops the observer

	turn, deleted int // see deleteOne
}

// newHistoryRun starts a run of several processes. The first has the given number of Clients, the others one.
func newHistoryRun(t *testing.T, plan workPlan, clients, others int, args ...string) *historyRun {
	t.Helper()
	return newHistoryRunOn(t, redistest.Start(t, args...), "", plan, clients, others)
}

// histRunning bounds how many runs go on at a time: each alone could keep the machine busy.
var histRunning = make(chan struct{}, runtime.GOMAXPROCS(0))

// newHistoryRunOn is newHistoryRun on a given server; if messages is set, that is the address of the one with the first process's subscriptions.
func newHistoryRunOn(t *testing.T, server *redistest.Server, messages string, plan workPlan, clients, others int) *historyRun {
	t.Helper()
	histRunning <- struct{}{}
	t.Cleanup(func() { <-histRunning })
	for i, name := range plan.Names {
		if i%2 == 0 && plan.is(histPlain) {
			plan.Fenced = append(plan.Fenced, name)
		}
	}
	b := &historyRun{family: newFamily(t, plan, server), log: newHistLog()}
	bounds := histBounds(plan.Seed, clients+others)
	var all []workClient
	for i := range clients + others {
		c := b.viaProxies()[0]
		c.First, c.HandOff = 1+i*plan.Each, bounds[i]
		if i < clients {
			c.Messages = messages
		}
		all = append(all, c)
	}
	b.start(all[:clients]...)
	for _, c := range all[clients:] {
		b.start(c)
	}
	b.ready(b.peers)
	b.family.goOn()
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
	reply := b.direct[0].Do(ctx, b.direct[0].B().Hgetall().Key(name).Build().Pin())
	if b.plan.is(histRW) {
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

// happens waits until each event has happened so often to the workers and Clients.
func (b *historyRun) happens(events map[histEvent]int64) {
	b.t.Helper()
	b.until(func() bool {
		total := b.sum(answers[histTally](b.family, "tally"))
		return total.has(events)
	}, func() {})
}

// sum adds the counts of the Clients.
func (b *historyRun) sum(all []histTally) histTally {
	total := newHistTally()
	for _, t := range all {
		total.add(t)
	}
	return total
}

// handsOff reports whether every Client must have handed locks off.
func (b *historyRun) handsOff() bool {
	return b.plan.is(histPlain) && b.plan.Each > 2 && !b.plan.Spoken
}

// finish stops the workers and returns the reports. It first waits for hand-offs of each Client.
func (b *historyRun) finish() []histReport {
	b.t.Helper()
	if b.handsOff() {
		b.until(func() bool {
			return !slices.ContainsFunc(answers[histTally](b.family, "tally"), func(t histTally) bool { return t.Events[handOffs] < 10 })
		}, func() {})
	}
	b.drain(time.Now(), histReturn, "all callers return")
	reports := answers[histReport](b.family, "report")
	b.watched()
	b.heedStalls(reports)
	b.fine()
	return reports
}

// end asserts that a run has left nothing, and that each lock can be acquired at once.
func (b *historyRun) end() {
	b.t.Helper()
	// A release that did not reach Redis is repeated until the lease ends. Ears end with their Clients.
	b.clean(10*time.Second+2*b.plan.Watchdog, isEar)
	b.family.end()
}

// check asserts that the history is that of a correct lock.
func (b *historyRun) check(reports []histReport) {
	b.t.Helper()
	total := b.total(reports)
	history := b.history(reports)
	b.verdict(porcupine.Ok, history)
	require.Empty(b.t, histReused(history), "I3: owners must not be reused")
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

// heedStalls gives a process that stood still longer to report the loss of a deleted hold.
func (b *historyRun) heedStalls(reports []histReport) {
	b.log.mu.Lock()
	defer b.log.mu.Unlock()
	for i, e := range b.log.entries {
		if e.Kind != histTold {
			continue
		}
		by := e.Call
		for _, r := range reports {
			ends := e.Call
			for _, s := range r.Stalls {
				ends += max(0, min(s.To, ends)-max(s.From, e.Call-int64(b.plan.told())))
			}
			by = max(by, ends)
		}
		b.log.entries[i].Call, b.log.entries[i].Return = by, by
	}
}

// history joins the reports and the observer's log, without some kinds of entries.
func (b *historyRun) history(reports []histReport, without ...histKind) []histEntry {
	return slices.DeleteFunc(histMerge(append(reports, b.log.report())...), func(e histEntry) bool { return slices.Contains(without, e.Kind) })
}

func (b *historyRun) total(reports []histReport) histTally {
	var all []histTally
	for _, r := range reports {
		all = append(all, r.Tally)
	}
	return b.sum(all)
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
