package faults

import (
	"context"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// histFor calls do at the given interval, for the time d.
func histFor(d, every time.Duration, do func()) {
	end := time.After(d)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-end:
			return
		case <-tick.C:
			do()
		}
	}
}

// until calls do ten times a second until enough is true.
func (b *historyRun) until(enough func() bool, do func()) {
	b.t.Helper()
	for end := time.Now().Add(histPatience); !enough(); {
		require.True(b.t, time.Now().Before(end), "the required event did not happen")
		histFor(time.Second, time.Second/10, do)
	}
}

const histWatchdog = 1500 * time.Millisecond // so that leases end within a run

// No fault: the histories of many workers, in several Clients and processes, are valid, and the witness sees no overlap. Only fixed
// leases are lost, in long sections. G1, G2, G5, G6, G8, G9.
func TestHistoryOfWorkers(t *testing.T) {
	t.Parallel()
	const notCounted = "listeners that are not counted"
	for name, row := range map[string]struct {
		plan                   workPlan
		names, clients, others int
		events                 map[histEvent]int64
	}{
		"processes": {workPlan{Each: 8}, 4, 3, 2, map[histEvent]int64{
			nested: 1, cancelled: 1, refused: 1, lost: 1, inside: 1, beside: 1, escaped: 1, sticks: 1, grants: 20}},
		// Grants arrive although PUBLISH counts none of the Clients' subscriptions: they are at a replica.
		notCounted: {workPlan{Each: 4}, 2, 3, 2, map[histEvent]int64{nested: 1, cancelled: 1, refused: 1}},
		// Sections are exported, and continue in another Client or the same one.
		"tickets": {workPlan{Each: 8, Along: 30}, 4, 3, 1, map[histEvent]int64{nested: 1, lost: 1, exported: 100, moved: 20}},
		"tickets of writers": {workPlan{Kinds: []string{histRW}, Each: 5, Along: 40}, 2, 3, 1, map[histEvent]int64{
			nested: 1, inside: 1, beside: 1, lost: 1, exported: 20, moved: 5}},
		"asked holds, kept locks and tickets": {workPlan{Each: 4, Along: 10, Spoken: true}, 8, 3, 1, map[histEvent]int64{
			nested: 1, lost: 1, exported: 20, moved: 5, asked: 20, kept: 20}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan := row.plan
			plan.Names, plan.Seed, plan.Watchdog, plan.Step = histNames(t, row.names), faultsSeed(t), histWatchdog, 3*time.Millisecond
			if plan.Kinds == nil {
				plan.Kinds = []string{histPlain}
			}
			var b *historyRun
			if name != notCounted {
				b = newHistoryRun(t, plan, row.clients, row.others)
			} else {
				master, replica := redistest.StartPair(t)
				b = newHistoryRunOn(t, master, replica.Addr(), plan, row.clients, row.others)
			}
			sleep(6 * time.Second)
			b.happens(row.events)
			reports := b.finish()
			b.end()
			b.check(reports)
			require.Empty(t, b.total(reports).Failures)
		})
	}
}

// Keys are deleted under their holders: each holder's ctx is cancelled in time (G2, G8), and no sections overlap for any
// other reason. With the deletions hidden, the checker rejects the overlap.
func TestHistoryOfDeletedKeys(t *testing.T) {
	t.Parallel()
	names := histNames(t, 2)
	b := newHistoryRun(t, workPlan{
		Kinds: []string{histPlain}, Names: names, Unguard: names, Each: 8, Seed: faultsSeed(t), Watchdog: histWatchdog, Step: 30 * time.Millisecond,
	}, 2, 1)
	b.until(func() bool { return b.deleted > 5 }, b.deleteOne)
	reports := b.finish()
	b.end()
	b.check(reports)
	require.Positive(t, b.total(reports).Events[lost])
	b.verdict(porcupine.Illegal, b.history(reports, histDelete, histTold))
}

// Faulty workers or Clients (see histNoLock and those below it) break the lock: the checker rejects the history, and the witness sees
// overlaps. Without this test, the other runs would prove nothing. G1, G2, G5, G8.
func TestHistoryRejects(t *testing.T) {
	t.Parallel()
	for sabotage, row := range map[string]struct {
		plan                   workPlan
		names, clients, others int
		deletes                bool
		broken                 map[histEvent]int64
		hides                  []histKind // which would give it away
		overlaps               bool       // the witness sees it
	}{
		histNoLock: {workPlan{Each: 8, Step: 3 * time.Millisecond}, 2, 2, 0, false, nil, nil, true},
		// As if an owner were more than one hold. The count in Redis is one level too high.
		histShared:     {workPlan{Each: 8, Step: 3 * time.Millisecond}, 2, 2, 0, false, nil, []histKind{histLook}, true},
		histOldGrant:   {workPlan{Each: 2, Step: 30 * time.Millisecond}, 1, 3, 0, false, map[histEvent]int64{forged: 1}, nil, true},
		histOtherGrant: {workPlan{Each: 2, Step: 30 * time.Millisecond}, 1, 3, 0, false, map[histEvent]int64{forged: 1}, nil, true},
		histForged:     {workPlan{Each: 8, Step: 30 * time.Millisecond}, 2, 2, 1, true, map[histEvent]int64{forged: 1}, nil, false},
		// A holder must stay inside for long enough, which depends on the seed.
		histDeaf: {workPlan{Each: 1, Step: 2 * time.Second}, 1, 2, 0, true, map[histEvent]int64{overdue: 1}, nil, false},
		histReadAll: {workPlan{Kinds: []string{histRW}, Each: 4, Step: 30 * time.Millisecond}, 1, 2, 0, false,
			nil, []histKind{histLook}, true},
		histNoUnlock: {workPlan{Kinds: []string{histRW}, Each: 4, Step: 3 * time.Millisecond}, 1, 2, 0, false, map[histEvent]int64{forged: 4}, nil, false},
	} {
		t.Run(sabotage, func(t *testing.T) {
			t.Parallel()
			plan := row.plan
			plan.Names, plan.Seed, plan.Watchdog, plan.Sabotage = histNames(t, row.names), faultsSeed(t), histWatchdog, sabotage
			if plan.Kinds == nil {
				plan.Kinds = []string{histPlain}
			}
			act := func() {}
			if row.deletes {
				plan.Unguard = plan.Names
			}
			b := newHistoryRun(t, plan, row.clients, row.others)
			if row.deletes {
				act = b.deleteOne
			}
			b.until(func() bool {
				total := b.sum(answers[histTally](b.family, "tally"))
				return total.has(row.broken) && (!row.overlaps || b.overlaps())
			}, act)
			reports := b.finish()
			if sabotage != histNoUnlock { // whose holds stay until their leases end
				b.end()
			}
			history := b.history(reports, row.hides...)
			b.verdict(porcupine.Illegal, history)
			if sabotage == histShared {
				require.NotEmpty(t, histReused(history))
			}
		})
	}
}

// deleteOne deletes the next of the unguarded keys.
func (b *historyRun) deleteOne() {
	b.t.Helper()
	b.turn++
	if b.delete(b.plan.Unguard[b.turn%len(b.plan.Unguard)]) {
		b.deleted++
	}
}

// told is how long a worker has to report the loss of a deleted hold: the longest lease that it may have requested, and histLate.
func (p workPlan) told() time.Duration { return p.Watchdog*3/2 + histLate }

// delete removes a key like a flush or an eviction. It records the owner and the deadline for reporting the loss.
func (b *historyRun) delete(name string) bool {
	b.t.Helper()
	const script = "local h = redis.call('hgetall', KEYS[1]) redis.call('del', KEYS[1]) return h"
	e := histEntry{Kind: histDelete, Name: name, Call: histNow()}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	found, err := b.direct[0].Do(ctx, b.direct[0].B().Arbitrary("EVAL", script, "1", name).Build()).AsStrSlice()
	e.Return = histNow()
	if rueidis.IsRedisNil(err) || err == nil && len(found) == 0 {
		b.log.add(e)
		return false
	}
	require.NoError(b.t, err)
	e.Owner = found[0]
	b.log.add(e)
	by := e.Return + int64(b.plan.told())
	b.log.add(histEntry{Kind: histTold, Name: name, Owner: e.Owner, Call: by, Return: by})
	return true
}

// A run's log recognizes the renewals of every kind. Otherwise a long hold would look as if it outlived its trust (G2).
func TestHistoryCheckerKnowsRenewals(t *testing.T) {
	t.Parallel()
	for kind, of := range map[string]func(c *rlock.Client, name string) rlock.Locker{
		"plain": func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name) },
		"fair":  func(c *rlock.Client, name string) rlock.Locker { return c.FairMutex(name) },
		"read":  func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Read() },
		"write": func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Write() },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			log := newHistLog()
			c, err := rlock.New(histRedis{Client: redistest.Dial(t, redistest.Shared(t)), log: log}, rlock.Options{WatchdogTimeout: time.Second})
			require.NoError(t, err)
			t.Cleanup(c.Close)
			for _, names := range []int{1, 2} { // renewed alone, and together
				var keys []histKey
				for range names {
					name := redistest.Name(t)
					ctx, unlock, err := of(c, name).Lock(context.Background())
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, unlock()) })
					keys = append(keys, histKey{name, rlock.Owner(ctx)})
				}
				for _, k := range keys {
					first := log.trusted(k)
					require.NotZero(t, first)
					redistest.Eventually(t, 10*time.Second, func() bool { return log.trusted(k) > first }, "the log must see a renewal")
				}
			}
		})
	}
}
