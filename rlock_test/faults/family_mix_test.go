package faults

import (
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
)

// familyNemesis strikes the servers of a family, and the ways to them. Each process has a way of its own to each server.
type familyNemesis struct {
	*family

	of []*mixNemesis // one a server, with the ways to it
}

func (f *family) nemesis(processes int) *familyNemesis {
	f.t.Helper()
	n := &familyNemesis{family: f}
	ways := make([][]string, processes)
	for i, s := range f.servers {
		b := &historyRun{t: f.t, server: s, direct: f.direct[i]}
		for j := range ways {
			p := redistest.StartProxy(f.t, s.Addr())
			b.proxies = append(b.proxies, p)
			ways[j] = append(ways[j], p.Addr())
		}
		n.of = append(n.of, newMixNemesis(b))
	}
	for _, w := range ways {
		f.start(w)
	}
	f.ready(f.peers)
	return n
}

// strike goes through a schedule, one fault after the other. Server faults are made by the test's goroutine, since they can fail it.
func (n *familyNemesis) strike(steps []mixStep, network map[string]mixRange) {
	n.t.Helper()
	for _, s := range steps {
		server := n.of[s.Proxy%len(n.of)]
		s.Proxy /= len(n.of)
		if _, ok := network[s.Fault]; ok {
			server.strikeNetwork(s)
		} else {
			server.strikeServer(s)
		}
		sleep(s.Rest)
	}
}

// ways is how many there are.
func (n *familyNemesis) ways() int { return len(n.of) * len(n.peers) }

// silence is how long a call waits for an answer, and for how long one is sent again, see docs/guarantees.md.
const silence = 3 * time.Second

// All of several locks, on two servers and in several slots, under the faults mixed at random: beside others that take some of them,
// or one alone, nested, cancelled. No two are in a lock together, whoever is in; after each round of faults all callers return, and nothing
// is left. G1, G2, G4 to G6, G8, G9.
func TestMixOfFaultsAll(t *testing.T) {
	t.Parallel()
	keeps := []string{"--appendonly", "yes", "--appendfsync", "always"}
	f := newFamily(t, familyPlan{
		Kinds: []string{"all of four"}, Each: 5, Seed: faultsSeed(t), Watchdog: time.Second,
		Step: 5 * time.Millisecond, Rest: 5 * time.Millisecond, Outages: true,
	}, redistest.Start(t, keeps...), redistest.StartCluster(t, 1, 0, keeps...).Nodes()[0])
	n := f.nemesis(3)
	network, server := mixLanes(f.plan.Watchdog)
	delete(server, "delete") // what that does to one lock is known
	rng := rand.New(rand.NewPCG(f.plan.Seed, 0))
	for end := time.Now().Add(faultsDuration(t, 25*time.Second)); time.Now().Before(end); {
		f.goOn()
		one, other := mixSchedule(rng, network, n.ways(), mixKindRound), mixSchedule(rng, server, n.ways(), mixKindRound)
		t.Logf("network: %v\nserver: %v", one, other)
		var wg sync.WaitGroup
		wg.Go(func() { n.strike(one, network) })
		n.strike(other, network)
		wg.Wait()
		f.idle(time.Now(), silence+f.plan.Watchdog+time.Second, "all return when there is peace")
		f.fine()
	}
	f.clean()
	f.end()
}

// A quorum of three servers under the faults mixed at random. While they strike one server at a time, with all that it knew or the
// way of a process to it, no Lock fails for that. When two are stopped, or have lost all they knew, holders are told before their leases
// can have ended, and Locks say that Redis cannot be reached. No two are in the lock together at any time, and when there is peace all
// callers return, and nothing is left. G1, G2, G4 to G6, G8, G9.
func TestMixOfFaultsQuorum(t *testing.T) {
	t.Parallel()
	f := newFamily(t, familyPlan{
		Kinds: []string{"quorum"}, Each: 4, Seed: faultsSeed(t), Watchdog: time.Second,
		Step: 5 * time.Millisecond, Rest: 5 * time.Millisecond, Outages: true,
	}, redistest.Start(t), redistest.Start(t), redistest.Start(t))
	n := f.nemesis(3)
	network, server := mixLanes(f.plan.Watchdog)
	maps.DeleteFunc(network, func(fault string, _ mixRange) bool { // nobody hands a quorum over
		return strings.Contains(fault, "hand-off") || strings.Contains(fault, "grant")
	})
	delete(server, "delete")
	// A server that forgets stays away until the leases that it knew have ended: docs/guarantees.md.
	server["crash"] = mixRange{f.plan.Watchdog + 50*time.Millisecond, 2 * f.plan.Watchdog}
	faults := maps.Clone(network)
	maps.Copy(faults, server)
	rng := rand.New(rand.NewPCG(f.plan.Seed, 0))
	end := time.Now().Add(faultsDuration(t, 25*time.Second))
	for round := 0; time.Now().Before(end); round++ {
		f.goOn()
		steps := mixSchedule(rng, faults, n.ways(), mixKindRound)
		t.Logf("%v", steps)
		n.strike(steps, network)
		require.Zero(t, f.unreached(), "one server does not matter")
		f.idle(time.Now(), f.plan.Watchdog+time.Second, "all return when there is peace")
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
		f.idle(time.Now(), f.plan.Watchdog+2*(silence+500*time.Millisecond)+time.Second, "all return though two servers are away")
		require.Empty(t, f.witness.after(gone+int64(f.plan.Watchdog+histLate)), "G2")
		require.Positive(t, f.unreached(), "Locks that say so")
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
	f.clean()
	f.end()
}

// Clients that now and then take a refused lock for theirs: a quorum that believes a minority of the servers, and one that goes in
// with some of its locks. The witness sees that (G1).
func TestMixSeesABelievedRefusal(t *testing.T) {
	t.Parallel()
	f := newFamily(t, familyPlan{
		Kinds: []string{"all", "quorum"}, Each: 2, Seed: faultsSeed(t), Watchdog: time.Second,
		Step: 5 * time.Millisecond, Rest: 5 * time.Millisecond, Outages: true, Sabotage: histReadAll,
	}, redistest.Start(t), redistest.Start(t), redistest.Start(t))
	f.startProcesses(2)
	f.goOn()
	for _, name := range []string{"all:0", "all:1", "quorum"} {
		redistest.Eventually(t, histPatience, func() bool { return f.witness.overlap(name) != "" }, name)
	}
}
