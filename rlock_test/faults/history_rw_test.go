package faults

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/go-rlock/rlock/internal/redistest"
)

// mixKindRound is how long the nemesis strikes locks of other kinds.
const mixKindRound = 8 * time.Second

// Read/write locks under random faults: re-entries, readers in a writer's section, downgrades, upgrades, fixed leases,
// cancelled waits. All histories are valid, no reader sees a writer at work, and nothing is left. G1, G2, G5, G6, G8, G9.
func TestMixOfFaultsReadWrite(t *testing.T) {
	b := mixRun(t, histPlan{Kind: histRW, Names: histNames(t, 2), Workers: 4, Seed: faultsSeed(t)}, 2, 1, mixKindRound).historyRun
	// Inside counts readers in a writer's section and upgrades, Beside counts downgrades.
	b.goOn(func(t histTally) bool { return t.Nested > 0 && t.Inside > 0 && t.Beside > 0 && t.Lost > 0 })
	reports := b.end()
	b.clean()
	b.check(reports)
}

// Faulty clients treat a refused read lock as theirs, so readers are inside beside a writer (G1). The checker rejects
// the history, and readers see a writer at work.
func TestHistoryRejectsReadersBesideAWriter(t *testing.T) {
	b := newHistoryRun(t, histPlan{
		Kind: histRW, Names: histNames(t, 1), Workers: 4, Seed: faultsSeed(t), Watchdog: 900 * time.Millisecond,
		Pause: 30 * time.Millisecond, Sabotage: histReadAll,
	}, 2, 0)
	b.goOn(func(t histTally) bool { return t.Torn > 0 })
	reports := b.end()
	b.clean()
	var unseen []histEntry // without the looks, which would give the readers away
	for _, e := range histMerge(append(reports, b.log.report())...) {
		if e.Kind != histLook {
			unseen = append(unseen, e)
		}
	}
	b.verdict(porcupine.Illegal, unseen)
}

// Faulty unlocks return nil without a command to Redis (G5): the hold stays, and the checker rejects the history.
func TestHistoryRejectsLostUnlocks(t *testing.T) {
	b := newHistoryRun(t, histPlan{
		Kind: histRW, Names: histNames(t, 1), Workers: 4, Seed: faultsSeed(t), Watchdog: 900 * time.Millisecond,
		Pause: 3 * time.Millisecond, Sabotage: histNoUnlock,
	}, 2, 0)
	b.until(2*time.Second, func() bool { return b.forgeries() > 3 }, 100*time.Millisecond, func() {})
	reports := b.end()
	redistest.Eventually(t, histPatience, func() bool { return !exists(t, b.direct, b.plan.Names[0]) }, "the leases must end")
	b.verdict(porcupine.Illegal, histMerge(append(reports, b.log.report())...))
}
