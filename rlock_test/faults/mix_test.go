package faults

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// mixRound is how long the nemesis strikes before the history is checked, which then takes seconds.
const mixRound = 25 * time.Second

// mixKindRound is how long the nemesis strikes locks of other kinds.
const mixKindRound = 8 * time.Second

// Faults 1 to 3 are mixed at random, on two lanes, network and server, against workers of several clients and processes.
// The one server keeps its data. G1 to G9: all histories are valid, the witness counts every section, and all calls
// return. After the faults, nothing is left, and each lock can be acquired at once.
//
// Each round logs its own seed: FAULTS_SEED replays its schedule.
func TestMixOfFaults(t *testing.T) {
	t.Parallel()
	seed := faultsSeed(t)
	rounds := max(1, int(faultsDuration(t, 3*mixRound)/mixRound))
	for i := range rounds {
		seed := seed + uint64(i)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			names := histNames(t, 4)
			n := mixRun(t, histPlan{Names: names, Unguard: names[3:], Workers: 5, Seed: seed}, 3, 2, mixRound)
			n.strikesAll(&n.handOffs, "lost hand-off")
			n.ends(map[histEvent]int64{sections: 1, nested: 1, lost: 1, grants: 1}) // long stops cost holds
		})
	}
}

// The same for other kinds of locks: read/write, with readers in a writer's section, downgrades and upgrades; fair; and asked holds, kept
// locks and tickets, with faults of their messages. G1, G2, G4 to G6, G8, G9.
func TestMixOfFaultsOfOtherKinds(t *testing.T) {
	t.Parallel()
	t.Run("read/write", func(t *testing.T) {
		t.Parallel()
		mixRun(t, histPlan{Kind: histRW, Names: histNames(t, 2), Workers: 4, Seed: faultsSeed(t)}, 2, 1, mixKindRound).
			ends(map[histEvent]int64{nested: 1, inside: 1, beside: 1, lost: 1})
	})
	t.Run("fair", func(t *testing.T) {
		t.Parallel()
		mixRun(t, histPlan{Kind: histFair, Names: histNames(t, 2), Workers: 4, Seed: faultsSeed(t)}, 2, 1, mixKindRound).
			ends(map[histEvent]int64{nested: 1, lost: 1, grants: 1})
	})
	t.Run("spoken to", func(t *testing.T) {
		t.Parallel()
		names := histNames(t, 8)
		n := mixRun(t, histPlan{Names: names, Unguard: names[6:], Workers: 4, Seed: faultsSeed(t), Along: 10, Spoken: true}, 3, 1, 2*mixKindRound)
		n.strikesAll(&n.spoken, "cut ear")
		n.ends(map[histEvent]int64{lost: 1, exported: 1, moved: 1, asked: 1, kept: 10})
	})
}

// strikesAll repeats a fault, at one proxy after the other, unless the schedule has struck something that it meets.
func (n *mixNemesis) strikesAll(struck *atomic.Int64, fault string) {
	n.t.Helper()
	for i := 0; struck.Load() == 0; i++ {
		require.Less(n.t, i, int(histPatience/time.Second), fault)
		n.strikeNetwork(mixStep{Fault: fault, Proxy: i % len(n.proxies), For: time.Second})
	}
}

// ends finishes a run in which each event must happen so often.
func (n *mixNemesis) ends(events map[histEvent]int64) {
	n.t.Helper()
	n.goOn(events)
	reports := n.end()
	n.clean()
	n.check(reports)
}

// mixRun starts a run under the schedules of the plan's seed, for the time d. It returns when the faults have ended.
func mixRun(t *testing.T, plan histPlan, clients, processes int, d time.Duration) *mixNemesis {
	t.Helper()
	plan.Watchdog, plan.Pause = time.Second, 10*time.Millisecond
	network, server := mixLanes(plan.Watchdog)
	if plan.Kind != "" { // other kinds have no hand-offs in a process and no unguarded keys
		maps.DeleteFunc(network, func(fault string, _ mixRange) bool { return strings.Contains(fault, "hand-off") })
		delete(server, "delete")
	}
	if plan.Spoken {
		maps.Copy(network, spokenFaults(plan.Watchdog))
	}
	rng := rand.New(rand.NewPCG(plan.Seed, 0))
	networkSteps := mixSchedule(rng, network, clients+processes, d)
	serverSteps := mixSchedule(rng, server, clients+processes, d)
	t.Logf("FAULTS_SEED=%d\nnetwork: %v\nserver: %v", plan.Seed, networkSteps, serverSteps)
	n := newMixNemesis(newHistoryRun(t, plan, clients, processes, "--appendonly", "yes", "--appendfsync", "always"))
	n.run(networkSteps, serverSteps)
	return n
}
