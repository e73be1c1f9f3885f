package faults

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// mixRound is how long the nemesis strikes before the history is checked, which then takes seconds.
const mixRound = 25 * time.Second

// Faults 1 to 3 are mixed at random, on two lanes, network and server, against workers of several clients and processes.
// The one server keeps its data. G1 to G9: all histories are valid, the witness counts every section, and all calls
// return. After the faults, nothing is left, and each lock can be acquired at once.
//
// Each round logs its own seed: FAULTS_SEED replays its schedule.
func TestMixOfFaults(t *testing.T) {
	seed := faultsSeed(t)
	rounds := max(1, int(faultsDuration(t, 3*mixRound)/mixRound))
	for i := range rounds {
		seed := seed + uint64(i)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { mixFaults(t, seed) })
	}
}

func mixFaults(t *testing.T, seed uint64) {
	const clients, processes = 3, 2
	names := histNames(t, 4)
	n := mixRun(t, histPlan{Names: names, Unguard: names[3:], Workers: 5, Seed: seed}, clients, processes, mixRound)
	b := n.historyRun
	// The schedule may have struck no hand-off.
	for i := 0; n.handOffs.Load() == 0 && i < int(histPatience/time.Second); i++ {
		n.strikeNetwork(mixStep{Fault: "lost hand-off", Proxy: i % (clients + processes), For: time.Second})
	}
	reports := b.end()
	b.clean()
	b.check(reports)
	total := b.sum(reports)
	t.Logf("%d requests or replies of hand-offs struck", n.handOffs.Load())
	require.Positive(t, n.handOffs.Load())
	require.Greater(t, total.HandOffs.Elsewhere, int64(20), "grants to other processes")
	require.Positive(t, total.Granted, "holds begun by a grant, without a command")
	require.Positive(t, total.Sections)
	require.Positive(t, total.Nested)
	require.Positive(t, total.Lost, "long stops must cost holds")
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
