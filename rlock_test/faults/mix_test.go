package faults

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
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
// The one server keeps its data. G1 to G9: all histories are valid, the witness sees no overlap, and all calls
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
			b, n := mixRun(t, workPlan{Kinds: []string{histPlain}, Names: names, Unguard: names[3:], Each: 5, Seed: seed}, 3, 2, mixRound)
			n.strikesAll(&n.handOffs, "lost hand-off")
			b.ends(map[histEvent]int64{sections: 1, nested: 1, lost: 1, grants: 1}) // long stops cost holds
		})
	}
}

// The same for other kinds of locks: read/write, with readers in a writer's section, downgrades and upgrades; fair; and asked holds, kept
// locks and tickets, with faults of their messages. G1, G2, G4 to G6, G8, G9.
func TestMixOfFaultsOfOtherKinds(t *testing.T) {
	t.Parallel()
	t.Run("read/write", func(t *testing.T) {
		t.Parallel()
		b, _ := mixRun(t, workPlan{Kinds: []string{histRW}, Names: histNames(t, 2), Each: 4, Seed: faultsSeed(t)}, 2, 1, mixKindRound)
		b.ends(map[histEvent]int64{nested: 1, inside: 1, beside: 1, lost: 1})
	})
	t.Run("fair", func(t *testing.T) {
		t.Parallel()
		b, _ := mixRun(t, workPlan{Kinds: []string{histFair}, Names: histNames(t, 2), Each: 4, Seed: faultsSeed(t)}, 2, 1, mixKindRound)
		b.ends(map[histEvent]int64{nested: 1, lost: 1, grants: 1})
	})
	t.Run("spoken to", func(t *testing.T) {
		t.Parallel()
		names := histNames(t, 8)
		b, n := mixRun(t, workPlan{
			Kinds: []string{histPlain}, Names: names, Unguard: names[6:], Each: 4, Seed: faultsSeed(t), Along: 10, Spoken: true,
		}, 3, 1, 2*mixKindRound)
		n.strikesAll(&n.spoken, "cut ear")
		b.ends(map[histEvent]int64{lost: 1, exported: 1, moved: 1, asked: 1, kept: 10})
	})
}

// strikesAll repeats a fault, at one proxy after the other, unless the schedule has struck something that it meets.
func (n *mixNemesis) strikesAll(struck *atomic.Int64, fault string) {
	n.t.Helper()
	for i := 0; struck.Load() == 0; i++ {
		require.Less(n.t, i, int(histPatience/time.Second), fault)
		n.strike(mixStep{Fault: fault, Proxy: i % len(n.proxies), For: time.Second})
	}
}

// ends finishes a run in which each event must happen so often.
func (b *historyRun) ends(events map[histEvent]int64) {
	b.t.Helper()
	b.happens(events)
	reports := b.finish()
	b.end()
	b.check(reports)
}

// mixRun starts a run under the schedules of the plan's seed, for the time d. It returns when the faults have ended.
func mixRun(t *testing.T, plan workPlan, clients, others int, d time.Duration) (*historyRun, *mixNemesis) {
	t.Helper()
	plan.Watchdog, plan.Step = time.Second, 10*time.Millisecond
	network, server := mixLanes(plan.Watchdog)
	if !plan.is(histPlain) { // other kinds have no hand-offs in a process and no unguarded keys
		maps.DeleteFunc(network, func(fault string, _ mixRange) bool { return strings.Contains(fault, "hand-off") })
		delete(server, "delete")
	}
	if plan.Spoken {
		maps.Copy(network, spokenFaults(plan.Watchdog))
	}
	rng := rand.New(rand.NewPCG(plan.Seed, 0))
	networkSteps := mixSchedule(rng, network, clients+others, d)
	serverSteps := mixSchedule(rng, server, clients+others, d)
	t.Logf("FAULTS_SEED=%d\nnetwork: %v\nserver: %v", plan.Seed, networkSteps, serverSteps)
	b := newHistoryRun(t, plan, clients, others, "--appendonly", "yes", "--appendfsync", "always")
	n := b.nemesis(b.deleteOne)
	n.run(networkSteps, serverSteps)
	return b, n
}

// faultsSeed returns the seed of all randomness in a test: FAULTS_SEED, or 1. It logs the seed, so that the run
// can be replayed.
func faultsSeed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(1)
	if s := os.Getenv("FAULTS_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err, "FAULTS_SEED")
	}
	t.Logf("FAULTS_SEED=%d", seed)
	return seed
}

// faultsDuration is how long a test with random faults runs: FAULTS_DURATION, or usual.
func faultsDuration(t testing.TB, usual time.Duration) time.Duration {
	t.Helper()
	s := os.Getenv("FAULTS_DURATION")
	if s == "" {
		return usual
	}
	d, err := time.ParseDuration(s)
	require.NoError(t, err, "FAULTS_DURATION")
	return d
}

// mixStep is one fault of a schedule: it lasts For, and nothing fails for Rest after it. Each fault gives
// Proxy and N their meaning: the client and the call that it hits.
type mixStep struct {
	Fault     string
	Proxy, N  int
	For, Rest time.Duration
}

func (s mixStep) String() string {
	return fmt.Sprintf("%s(%d, %d) %v", s.Fault, s.Proxy, s.N, s.For.Round(time.Millisecond))
}

// mixRange is how long a fault lasts.
type mixRange struct{ from, to time.Duration }

// mixLanes are the faults. One lane hits the network, the other the server, at the same time.
func mixLanes(watchdog time.Duration) (network, server map[string]mixRange) {
	ms := time.Millisecond
	network = map[string]mixRange{
		"delay":        {300 * ms, 1000 * ms},
		"cut":          {0, 0},
		"lost reply":   {200 * ms, 800 * ms},
		"silent reply": {200 * ms, watchdog * 3 / 2},
		"lost request": {200 * ms, 800 * ms},
		"late request": {100 * ms, watchdog * 3 / 2},
		"late reply":   {100 * ms, watchdog * 3 / 2},

		"lost hand-off":       {500 * ms, 1000 * ms},
		"lost hand-off reply": {500 * ms, 1000 * ms},
		"late hand-off":       {500 * ms, watchdog * 3 / 2},
		"late hand-off reply": {500 * ms, watchdog * 3 / 2},

		"lost grant":              {500 * ms, 1000 * ms},
		"cut grant":               {500 * ms, 1000 * ms},
		"late grant":              {500 * ms, watchdog * 3 / 2},
		"lost grants and watches": {500 * ms, watchdog},

		"held subscribe": {200 * ms, 800 * ms},
		"black hole":     {1000 * ms, 3000 * ms},
		"refused":        {200 * ms, 1000 * ms},
		"-LOADING":       {200 * ms, 800 * ms},
		"-BUSY":          {200 * ms, 800 * ms},
		"-READONLY":      {200 * ms, 800 * ms},
	}
	server = map[string]mixRange{
		"kill clients": {0, 0},
		"kill pubsub":  {0, 0},
		"script flush": {300 * ms, 1000 * ms},
		"short stop":   {watchdog / 10, watchdog / 2},
		"long stop":    {watchdog * 5 / 4, watchdog * 2},
		"crash":        {0, 300 * ms},
		"delete":       {0, 0},
	}
	return network, server
}

// mixSchedule makes steps for the given time; the same seed makes the same steps. Each fault occurs once before
// any occurs twice.
func mixSchedule(rng *rand.Rand, faults map[string]mixRange, proxies int, d time.Duration) []mixStep {
	names := slices.Sorted(maps.Keys(faults)) // map order is random
	var steps []mixStep
	for d > 0 {
		for _, i := range rng.Perm(len(names)) {
			r := faults[names[i]]
			s := mixStep{Fault: names[i], Proxy: rng.IntN(proxies), N: 1 + rng.IntN(20), For: r.from}
			s.For += time.Duration(rng.Int64N(int64(r.to-r.from) + 1))
			s.Rest = 100*time.Millisecond + time.Duration(rng.Int64N(int64(700*time.Millisecond)))
			steps = append(steps, s)
			if d -= s.For + s.Rest; d <= 0 {
				return steps
			}
		}
	}
	return steps
}
