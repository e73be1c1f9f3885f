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

// until calls do at the given interval until enough is true.
func (b *historyRun) until(enough func() bool, every time.Duration, do func()) {
	b.t.Helper()
	for end := time.Now().Add(histPatience); !enough(); {
		require.True(b.t, time.Now().Before(end), "the required event did not happen")
		histFor(10*every, every, do)
	}
}

const histWatchdog = 1500 * time.Millisecond // so that leases end within a run

// No fault: the histories of many workers, in several Clients and processes, are valid, and the witness counts every section. Only fixed
// leases are lost, in long sections. G1, G2, G5, G6, G8, G9.
func TestHistoryOfWorkers(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		plan                      histPlan
		names, clients, processes int
		events                    map[histEvent]int64 // by the workers and Clients of this process
	}{
		"processes": {histPlan{Workers: 8}, 4, 3, 2, map[histEvent]int64{
			nested: 1, cancelled: 1, refused: 1, lost: 1, inside: 1, beside: 1, escaped: 1, sticks: 1, grants: 20}},
		// Grants arrive although PUBLISH counts none of the Clients' subscriptions: they are at a replica.
		"listeners that are not counted": {histPlan{Workers: 4, Messages: "replica"}, 2, 3, 2, map[histEvent]int64{nested: 1, cancelled: 1, refused: 1}},
		// Sections are exported, and continue in another Client or the same one.
		"tickets": {histPlan{Workers: 8, Along: 30}, 4, 3, 1, map[histEvent]int64{nested: 1, lost: 1, exported: 100, moved: 20}},
		"tickets of writers": {histPlan{Kind: histRW, Workers: 5, Along: 40}, 2, 3, 1, map[histEvent]int64{
			nested: 1, inside: 1, beside: 1, lost: 1, exported: 20, moved: 5}},
		"asked holds, kept locks and tickets": {histPlan{Workers: 4, Along: 10, Spoken: true}, 8, 3, 1, map[histEvent]int64{
			nested: 1, lost: 1, exported: 20, moved: 5, asked: 20, kept: 20}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan := row.plan
			plan.Names, plan.Seed, plan.Watchdog, plan.Pause = histNames(t, row.names), faultsSeed(t), histWatchdog, 3*time.Millisecond
			var b *historyRun
			if plan.Messages == "" {
				b = newHistoryRun(t, plan, row.clients, row.processes)
			} else {
				master, replica := redistest.StartPair(t)
				plan.Messages = replica.Addr()
				b = newHistoryRunOn(t, master, plan, row.clients, row.processes)
			}
			sleep(6 * time.Second)
			b.goOn(row.events)
			reports := b.end()
			b.clean()
			b.check(reports)
			require.Empty(t, b.sum(reports).Failures)
		})
	}
}

// Keys are deleted under their holders: each holder's ctx is cancelled in time (G2, G8), and no sections overlap for any
// other reason. With the deletions hidden, the checker rejects the overlap.
func TestHistoryOfDeletedKeys(t *testing.T) {
	t.Parallel()
	names := histNames(t, 2)
	b := newHistoryRun(t, histPlan{
		Names: names, Unguard: names, Workers: 8, Seed: faultsSeed(t), Watchdog: histWatchdog, Pause: 30 * time.Millisecond,
	}, 2, 1)
	b.until(func() bool { return b.deleted > 5 }, 100*time.Millisecond, b.deleteOne)
	reports := b.end()
	b.clean()
	b.check(reports)
	require.Positive(t, b.sum(reports).Events[lost])
	b.verdict(porcupine.Illegal, b.history(reports, histDelete, histTold))
}

// Faulty workers or Clients (see histNoLock and those below it) break the lock: the checker rejects the history, and the witness loses
// updates. Without this test, the other runs would prove nothing. G1, G2, G5, G8.
func TestHistoryRejects(t *testing.T) {
	t.Parallel()
	forged := func(n int64) func(b *historyRun) bool {
		return func(b *historyRun) bool { return b.forgeries() >= n }
	}
	missed := func(b *historyRun) bool { return b.missed() > 0 }
	for sabotage, row := range map[string]struct {
		plan                      histPlan
		names, clients, processes int
		deletes                   bool
		broken                    func(b *historyRun) bool
		hides                     []histKind // which would give it away
		loses                     bool
	}{
		histNoLock: {histPlan{Workers: 8, Pause: 3 * time.Millisecond}, 2, 2, 0, false, missed, nil, true},
		// As if an owner were more than one hold. The count in Redis is one level too high.
		histShared: {histPlan{Workers: 8, Pause: 3 * time.Millisecond}, 2, 2, 0, false, missed, []histKind{histLook}, true},
		histOldGrant: {histPlan{Workers: 2, Pause: 30 * time.Millisecond}, 1, 3, 0, false, func(b *historyRun) bool {
			return forged(1)(b) && missed(b)
		}, nil, true},
		histOtherGrant: {histPlan{Workers: 2, Pause: 30 * time.Millisecond}, 1, 3, 0, false, func(b *historyRun) bool {
			return forged(1)(b) && missed(b)
		}, nil, true},
		histForged: {histPlan{Workers: 8, Pause: 30 * time.Millisecond}, 2, 2, 1, true, forged(1), nil, false},
		// A holder must stay inside for long enough, which depends on the seed.
		histDeaf: {histPlan{Workers: 1, Pause: 2 * time.Second}, 1, 2, 0, true, func(b *historyRun) bool { return b.seen(histOver) > 0 }, nil, false},
		histReadAll: {histPlan{Kind: histRW, Workers: 4, Pause: 30 * time.Millisecond}, 1, 2, 0, false, func(b *historyRun) bool {
			return b.crews[0].happened(torn)+b.crews[1].happened(torn) > 0
		}, []histKind{histLook}, false},
		histNoUnlock: {histPlan{Kind: histRW, Workers: 4, Pause: 3 * time.Millisecond}, 1, 2, 0, false, forged(4), nil, false},
	} {
		t.Run(sabotage, func(t *testing.T) {
			t.Parallel()
			plan := row.plan
			plan.Names, plan.Seed, plan.Watchdog, plan.Sabotage = histNames(t, row.names), faultsSeed(t), histWatchdog, sabotage
			act := func() {}
			if row.deletes {
				plan.Unguard = plan.Names
			}
			b := newHistoryRun(t, plan, row.clients, row.processes)
			if row.deletes {
				act = b.deleteOne
			}
			b.until(func() bool { return row.broken(b) }, 100*time.Millisecond, act)
			reports := b.end()
			if sabotage != histNoUnlock { // whose holds stay until their leases end
				b.clean()
			}
			history := b.history(reports, row.hides...)
			b.verdict(porcupine.Illegal, history)
			if sabotage == histShared {
				require.NotEmpty(t, histReused(history))
			}
			if row.loses {
				require.Positive(t, b.lost(b.sum(reports)), "the witness must lose updates")
			}
		})
	}
}

// deleteOne deletes the next of the keys.
func (b *historyRun) deleteOne() {
	b.t.Helper()
	b.turn++
	if b.delete(b.plan.Names[b.turn%len(b.plan.Names)]) {
		b.deleted++
	}
}

// delete removes a key like a flush or an eviction. It records the owner and the deadline for reporting the loss: the
// longest lease that a worker may have requested, and histLate.
func (b *historyRun) delete(name string) bool {
	b.t.Helper()
	const script = "local h = redis.call('hgetall', KEYS[1]) redis.call('del', KEYS[1]) return h"
	e := histEntry{Kind: histDelete, Name: name, Call: histNow()}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	found, err := b.direct.Do(ctx, b.direct.B().Arbitrary("EVAL", script, "1", name).Build()).AsStrSlice()
	e.Return = histNow()
	if rueidis.IsRedisNil(err) || err == nil && len(found) == 0 {
		b.log.add(e)
		return false
	}
	require.NoError(b.t, err)
	e.Owner = found[0]
	b.log.add(e)
	by := e.Return + int64(b.plan.Watchdog*3/2+histLate)
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
