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

// histFor lets a run go on for a while, doing something every so often.
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

// until goes on for a while at least, and until that was enough.
func (b *historyRun) until(least time.Duration, enough func() bool, every time.Duration, do func()) {
	b.t.Helper()
	for range histPatience / least {
		histFor(least, every, do)
		if enough() {
			return
		}
	}
	require.FailNow(b.t, "what had to happen did not")
}

// No fault: the histories of many workers, of several clients and processes, are those of a lock, and
// the witness misses nothing. G1, G2 (fixed leases end in long sections), G5, G6, G8, G9.
func TestHistoryOfProcesses(t *testing.T) {
	b := newHistoryRun(t, histPlan{
		Names: histNames(t, 4), Workers: 8, Seed: faultsSeed(t), Watchdog: 900 * time.Millisecond,
		Pause: 3 * time.Millisecond,
	}, 3, 2)
	sleep(8 * time.Second)
	// Losses are of fixed leases.
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
	require.Greater(t, total.Granted, int64(20), "holds that began with a grant, without a command")
}

// A worker that now and then skips the lock (G1): the checker rejects the history, and the witness misses
// updates. Without this the runs that pass would prove nothing.
func TestHistoryRejectsWorkersWithoutLock(t *testing.T) {
	b := newHistoryRun(t, histPlan{
		Names: histNames(t, 2), Workers: 8, Seed: faultsSeed(t), Watchdog: 900 * time.Millisecond,
		Pause: 3 * time.Millisecond, Sabotage: histNoLock,
	}, 2, 0)
	sleep(3 * time.Second)
	redistest.Eventually(t, histPatience, func() bool { return b.missed() > 0 }, "updates lost")
	reports := b.end()
	b.clean()
	b.verdict(porcupine.Illegal, histMerge(append(reports, b.log.report())...))
	require.Positive(t, b.lost(b.sum(reports)), "updates lost")
}

// Goroutines of a section that share an owner on other locks too, as an owner that is more than one hold would have it (G1): two of
// them inside at once are rejected, and the witness misses updates.
func TestHistoryRejectsSharedOwners(t *testing.T) {
	b := newHistoryRun(t, histPlan{
		Names: histNames(t, 2), Workers: 8, Seed: faultsSeed(t), Watchdog: 900 * time.Millisecond,
		Pause: 3 * time.Millisecond, Sabotage: histShared,
	}, 2, 0)
	sleep(3 * time.Second)
	redistest.Eventually(t, histPatience, func() bool { return b.missed() > 0 }, "updates lost")
	reports := b.end()
	b.clean()
	var unseen []histEntry // the count in Redis, which has a level more than they say, would give them away
	for _, e := range histMerge(append(reports, b.log.report())...) {
		if e.Kind != histLook {
			unseen = append(unseen, e)
		}
	}
	b.verdict(porcupine.Illegal, unseen)
	require.NotEmpty(t, histReused(unseen))
	require.Positive(t, b.lost(b.sum(reports)), "updates lost")
}

// Keys are deleted under their holders: a loss that each holder is told of in time (G2, G8), and no overlap
// beyond that; without the entries that say so it is one, and the checker has to see it.
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

// The same with clients that take a hand-off of a hold that is gone for one that was made (G1, G8): nobody
// has the lock that the waiter gets, and the checker rejects that.
func TestHistoryRejectsForgedHandOffs(t *testing.T) {
	b, reports := histDeletions(t, histForged, func(b *historyRun) bool { return b.forgeries() > 0 })
	b.verdict(porcupine.Illegal, histMerge(append(reports, b.log.report())...))
}

// Clients that take a grant of another process for good when it is over, and ask nobody (G1, G2): somebody else has the lock by
// then. The checker rejects that, and the witness misses updates.
func TestHistoryRejectsGrantsThatAreOver(t *testing.T) { histRejectsGrants(t, histOldGrant) }

// Clients that take a grant for one of theirs that waits, though it is for another owner (G1): the lock has gone on since. The
// checker rejects that, and the witness misses updates.
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
	require.Positive(t, b.lost(b.sum(reports)), "updates lost")
}

// histDeletions is a run in which keys are deleted under their holders until that was enough.
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

// The same with holders who do not heed their ctx (G2): they are still inside when they should know
// better, and the checker rejects that.
func TestHistoryRejectsDeafHolders(t *testing.T) {
	names := histNames(t, 1)
	b := newHistoryRun(t, histPlan{
		Names: names, Unguard: names, Workers: 1, Seed: faultsSeed(t), Watchdog: 600 * time.Millisecond,
		Pause: 2 * time.Second, Sabotage: histDeaf,
	}, 2, 0)
	// One has to be inside for long enough, which is up to the seed.
	tooLong := func() bool { return b.seen(histOver) > 0 }
	b.until(6*time.Second, tooLong, 500*time.Millisecond, func() { b.delete(names[0]) })
	reports := b.end()
	b.clean()
	b.verdict(porcupine.Illegal, histMerge(append(reports, b.log.report())...))
}

// delete removes a key as a flush or an eviction does, and writes down whose it was and by when its
// holder must know: when the longest lease that a worker asks for has run out.
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
