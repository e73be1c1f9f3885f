package faults

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
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

// until calls do at the given interval, for the time least or a multiple of it, until enough is true.
func (b *historyRun) until(least time.Duration, enough func() bool, every time.Duration, do func()) {
	b.t.Helper()
	for range histPatience / least {
		histFor(least, every, do)
		if enough() {
			return
		}
	}
	require.FailNow(b.t, "the required event did not happen")
}

// No fault: the histories of many workers, in several clients and processes, are valid, and the witness counts every
// section. G1, G2 (fixed leases end in long sections), G5, G6, G8, G9.
func TestHistoryOfProcesses(t *testing.T) {
	b := newHistoryRun(t, histPlan{
		Names: histNames(t, 4), Workers: 8, Seed: faultsSeed(t), Watchdog: 900 * time.Millisecond,
		Pause: 3 * time.Millisecond,
	}, 3, 2)
	sleep(8 * time.Second)
	// Only fixed leases are lost.
	b.goOn(func(t histTally) bool {
		return t.Nested > 0 && t.Cancelled > 0 && t.Refused > 0 && t.Lost > 0 &&
			t.Inside > 0 && t.Beside > 0 && t.Escaped > 0 && t.Sticky > 0
	})
	reports := b.end()
	b.clean()
	b.check(reports)
	total := b.sum(reports)
	require.Zero(t, total.Failed)
	require.Greater(t, total.HandOffs.Elsewhere, int64(50), "grants to other processes")
	require.Greater(t, total.Granted, int64(20), "holds begun by a grant, without a command")
}

// No fault, but the server counts none of the Clients' subscriptions, only those of processes: grants arrive although PUBLISH answered 0. G1 to G9.
func TestHistoryWhereListenersAreNotCounted(t *testing.T) {
	master, replica := redistest.StartPair(t)
	b := newHistoryRunOn(t, master, histPlan{
		Messages: replica.Addr(), Names: histNames(t, 2), Workers: 4, Seed: faultsSeed(t), Watchdog: 900 * time.Millisecond,
		Pause: 3 * time.Millisecond,
	}, 3, 2)
	sleep(4 * time.Second)
	b.goOn(func(t histTally) bool { return t.Nested > 0 && t.Cancelled > 0 && t.Refused > 0 })
	reports := b.end()
	b.clean()
	b.check(reports)
	require.Zero(t, b.sum(reports).Failed)
}

// Workers now and then skip the lock (G1): the checker rejects the history, and the witness loses updates. Without this
// test, the other runs would prove nothing.
func TestHistoryRejectsWorkersWithoutLock(t *testing.T) {
	b := newHistoryRun(t, histPlan{
		Names: histNames(t, 2), Workers: 8, Seed: faultsSeed(t), Watchdog: 900 * time.Millisecond,
		Pause: 3 * time.Millisecond, Sabotage: histNoLock,
	}, 2, 0)
	sleep(3 * time.Second)
	redistest.Eventually(t, histPatience, func() bool { return b.missed() > 0 }, "the witness must lose updates")
	reports := b.end()
	b.clean()
	b.verdict(porcupine.Illegal, histMerge(append(reports, b.log.report())...))
	require.Positive(t, b.lost(b.sum(reports)), "the witness must lose updates")
}

// Goroutines of a section share its owner on other locks too, as if an owner were more than one hold (G1): the checker
// rejects two of them inside at once, and the witness loses updates.
func TestHistoryRejectsSharedOwners(t *testing.T) {
	b := newHistoryRun(t, histPlan{
		Names: histNames(t, 2), Workers: 8, Seed: faultsSeed(t), Watchdog: 900 * time.Millisecond,
		Pause: 3 * time.Millisecond, Sabotage: histShared,
	}, 2, 0)
	sleep(3 * time.Second)
	redistest.Eventually(t, histPatience, func() bool { return b.missed() > 0 }, "the witness must lose updates")
	reports := b.end()
	b.clean()
	var unseen []histEntry // without the looks: the count in Redis, one level too high, would give them away
	for _, e := range histMerge(append(reports, b.log.report())...) {
		if e.Kind != histLook {
			unseen = append(unseen, e)
		}
	}
	b.verdict(porcupine.Illegal, unseen)
	require.NotEmpty(t, histReused(unseen))
	require.Positive(t, b.lost(b.sum(reports)), "the witness must lose updates")
}

// Keys are deleted under their holders: each holder's ctx is cancelled in time (G2, G8), and no sections overlap for any
// other reason. With the deletions hidden, the checker rejects the overlap.
func TestHistoryOfDeletedKeys(t *testing.T) {
	b, reports := histDeletions(t, "", func(*historyRun) bool { return true })
	b.check(reports)
	require.Positive(t, b.sum(reports).Lost)

	var unsaid []histEntry
	for _, e := range histMerge(append(reports, b.log.report())...) {
		if e.Kind != histDelete && e.Kind != histTold {
			unsaid = append(unsaid, e)
		}
	}
	b.verdict(porcupine.Illegal, unsaid)
}

// The same with clients that treat the refused hand-off of a lost hold as a success (G1, G8): the waiter enters without
// the lock, and the checker rejects the history.
func TestHistoryRejectsForgedHandOffs(t *testing.T) {
	b, reports := histDeletions(t, histForged, func(b *historyRun) bool { return b.forgeries() > 0 })
	b.verdict(porcupine.Illegal, histMerge(append(reports, b.log.report())...))
}

// Clients use another process's grant after its lease, without asking Redis (G1, G2), when somebody else has the lock.
// The checker rejects the history, and the witness loses updates.
func TestHistoryRejectsGrantsThatAreOver(t *testing.T) { histRejectsGrants(t, histOldGrant) }

// Clients use a grant to another owner for one of their own waiters (G1), when the lock has passed on. The checker
// rejects the history, and the witness loses updates.
func TestHistoryRejectsGrantsOfOthers(t *testing.T) { histRejectsGrants(t, histOtherGrant) }

func histRejectsGrants(t *testing.T, sabotage string) {
	t.Helper()
	b := newHistoryRun(t, histPlan{
		Names: histNames(t, 1), Workers: 2, Seed: faultsSeed(t), Watchdog: 900 * time.Millisecond,
		Pause: 30 * time.Millisecond, Sabotage: sabotage,
	}, 3, 0)
	b.until(3*time.Second, func() bool { return b.forgeries() > 0 && b.missed() > 0 }, 100*time.Millisecond, func() {})
	reports := b.end()
	b.clean()
	b.verdict(porcupine.Illegal, histMerge(append(reports, b.log.report())...))
	require.Positive(t, b.lost(b.sum(reports)), "the witness must lose updates")
}

// histDeletions runs workers while keys are deleted under their holders, until enough is true.
func histDeletions(t *testing.T, sabotage string, enough func(*historyRun) bool) (*historyRun, []histReport) {
	t.Helper()
	names := histNames(t, 2)
	b := newHistoryRun(t, histPlan{
		Names: names, Unguard: names, Workers: 8, Seed: faultsSeed(t), Watchdog: 900 * time.Millisecond,
		Pause: 30 * time.Millisecond, Sabotage: sabotage,
	}, 2, 1)
	n := 0
	rng := rand.New(rand.NewPCG(b.plan.Seed, 0))
	b.until(6*time.Second, func() bool { return n > 0 && enough(b) }, 100*time.Millisecond, func() {
		if b.delete(names[rng.IntN(len(names))]) {
			n++
		}
	})
	reports := b.end()
	b.clean()
	require.Positive(t, n)
	return b, reports
}

// The same with holders that ignore their ctx (G2): they stay inside for too long, and the checker rejects the history.
func TestHistoryRejectsDeafHolders(t *testing.T) {
	names := histNames(t, 1)
	b := newHistoryRun(t, histPlan{
		Names: names, Unguard: names, Workers: 1, Seed: faultsSeed(t), Watchdog: 600 * time.Millisecond,
		Pause: 2 * time.Second, Sabotage: histDeaf,
	}, 2, 0)
	// A holder must stay inside for long enough, which depends on the seed.
	tooLong := func() bool { return b.seen(histOver) > 0 }
	b.until(6*time.Second, tooLong, 500*time.Millisecond, func() { b.delete(names[0]) })
	reports := b.end()
	b.clean()
	b.verdict(porcupine.Illegal, histMerge(append(reports, b.log.report())...))
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
