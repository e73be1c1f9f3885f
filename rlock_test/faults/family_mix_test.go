package faults

import (
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// silence is how long a call waits for an answer, and for how long a call is retried: see docs/guarantees.md.
const silence = 3 * time.Second

// All takes several locks, on two servers and in several slots, while faults strike at random. Other callers take some
// of the locks, or one of them, nested and cancelled. No two callers ever share a lock; after each round of faults all
// calls return, and nothing is left. G1, G2, G4 to G6, G8, G9.
func TestMixOfFaultsAll(t *testing.T) {
	t.Parallel()
	keeps := []string{"--appendonly", "yes", "--appendfsync", "always"}
	f := newFamily(t, workPlan{
		Kinds: []string{"all of four"}, Each: 5, Seed: faultsSeed(t), Watchdog: time.Second,
		Step: 5 * time.Millisecond, Rest: 5 * time.Millisecond, Outages: true,
	}, redistest.Start(t, keeps...), redistest.StartCluster(t, 1, 0, keeps...).Nodes()[0])
	f.startProcesses(3, f.viaProxies)
	n := f.nemesis(nil)
	network, server := mixLanes(f.plan.Watchdog)
	delete(server, "delete") // its effect on a single lock is known
	rng := rand.New(rand.NewPCG(f.plan.Seed, 0))
	for end := time.Now().Add(faultsDuration(t, 25*time.Second)); time.Now().Before(end); {
		f.goOn()
		one, other := mixSchedule(rng, network, len(f.proxies), mixKindRound), mixSchedule(rng, server, len(f.proxies), mixKindRound)
		t.Logf("network: %v\nserver: %v", one, other)
		n.run(one, other)
		f.drain(time.Now(), silence+f.plan.Watchdog+time.Second, "all calls return after the faults")
		f.fine()
	}
	f.clean(patience + f.plan.Watchdog)
	f.end()
}

// A quorum of three servers under random faults. While they strike one server at a time, with all its data or with one
// process's connection to it, no Lock fails because of that. When two servers are stopped or have lost their data, the
// ctx of holders ends before their leases can, and Locks fail with ErrUnreachable. No two callers ever share the lock;
// after the faults all calls return, and nothing is left. G1, G2, G4 to G6, G8, G9.
func TestMixOfFaultsQuorum(t *testing.T) {
	t.Parallel()
	f := newFamily(t, workPlan{
		Kinds: []string{"quorum"}, Each: 4, Seed: faultsSeed(t), Watchdog: time.Second,
		Step: 5 * time.Millisecond, Rest: 5 * time.Millisecond, Outages: true,
	}, redistest.Start(t), redistest.Start(t), redistest.Start(t))
	f.startProcesses(3, f.viaProxies)
	n := f.nemesis(nil)
	network, server := mixLanes(f.plan.Watchdog)
	maps.DeleteFunc(network, func(fault string, _ mixRange) bool { // a quorum has no hand-offs
		return strings.Contains(fault, "hand-off") || strings.Contains(fault, "grant")
	})
	delete(server, "delete")
	// A server that loses its data stays away until the leases it knew have ended: see docs/guarantees.md.
	server["crash"] = mixRange{f.plan.Watchdog + 50*time.Millisecond, 2 * f.plan.Watchdog}
	faults := maps.Clone(network)
	maps.Copy(faults, server)
	rng := rand.New(rand.NewPCG(f.plan.Seed, 0))
	end := time.Now().Add(faultsDuration(t, 25*time.Second))
	for round := 0; time.Now().Before(end); round++ {
		f.goOn()
		steps := mixSchedule(rng, faults, len(f.proxies), mixKindRound)
		t.Logf("%v", steps)
		n.strikes(steps)
		require.Zero(t, f.unreached(), "Locks succeed without one server")
		f.drain(time.Now(), f.plan.Watchdog+time.Second, "all calls return after the faults")
		f.fine()

		f.goOn()
		sleep(200 * time.Millisecond)
		crash := round%2 == 1
		first := rng.IntN(len(f.servers))
		for i := range 2 {
			s := f.servers[(first+i)%len(f.servers)]
			if crash {
				s.Kill()
			} else {
				s.Pause()
			}
		}
		gone := histNow()
		f.idle(time.Now(), f.plan.Watchdog+2*(silence+500*time.Millisecond)+time.Second, "all calls return, although two servers are away")
		require.Empty(t, f.witness.after(gone+int64(f.plan.Watchdog+histLate)), "G2")
		require.Positive(t, f.unreached(), "some Locks fail with ErrUnreachable")
		for i := range 2 {
			s := f.servers[(first+i)%len(f.servers)]
			if crash {
				s.Restart()
			} else {
				s.Resume()
			}
		}
		f.forgive()
		f.fine()
	}
	f.clean(patience + f.plan.Watchdog)
	f.end()
}

// Faulty clients now and then treat a refused lock as theirs: a quorum that trusts a minority of servers, and an All
// that goes in with only some of its locks. The witness notices (G1).
func TestMixSeesABelievedRefusal(t *testing.T) {
	t.Parallel()
	f := newFamily(t, workPlan{
		Kinds: []string{"all", "quorum"}, Each: 2, Seed: faultsSeed(t), Watchdog: time.Second,
		Step: 5 * time.Millisecond, Rest: 5 * time.Millisecond, Outages: true, Sabotage: histReadAll,
	}, redistest.Start(t), redistest.Start(t), redistest.Start(t))
	f.startProcesses(2, f.straight)
	f.goOn()
	for _, name := range []string{"all:0", "all:1", "quorum"} {
		redistest.Eventually(t, histPatience, func() bool { return f.witness.overlap(name) != "" }, name)
	}
}
