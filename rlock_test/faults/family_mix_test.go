package faults

import (
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// familyNemesis injects faults into the servers of a family and the connections to them. Each process has its own proxy to each server.
type familyNemesis struct {
	*family

	of []*mixNemesis // one per server, with the proxies in front of it
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

// strike runs a schedule, one fault after another. The test's goroutine makes the server faults, since they can fail the test.
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

// ways returns the number of proxies.
func (n *familyNemesis) ways() int { return len(n.of) * len(n.peers) }

// silence is how long a call waits for an answer, and for how long a call is retried: see docs/guarantees.md.
const silence = 3 * time.Second

// All takes several locks, on two servers and in several slots, while faults strike at random. Other callers take some
// of the locks, or one of them, nested and cancelled. No two callers ever share a lock; after each round of faults all
// calls return, and nothing is left. G1, G2, G4 to G6, G8, G9.
func TestMixOfFaultsAll(t *testing.T) {
	t.Parallel()
	keeps := []string{"--appendonly", "yes", "--appendfsync", "always"}
	f := newFamily(t, familyPlan{
		Kinds: []string{"all of four"}, Each: 5, Seed: faultsSeed(t), Watchdog: time.Second,
		Step: 5 * time.Millisecond, Rest: 5 * time.Millisecond, Outages: true,
	}, redistest.Start(t, keeps...), redistest.StartCluster(t, 1, 0, keeps...).Nodes()[0])
	n := f.nemesis(3)
	network, server := mixLanes(f.plan.Watchdog)
	delete(server, "delete") // its effect on a single lock is known
	rng := rand.New(rand.NewPCG(f.plan.Seed, 0))
	for end := time.Now().Add(faultsDuration(t, 25*time.Second)); time.Now().Before(end); {
		f.goOn()
		one, other := mixSchedule(rng, network, n.ways(), mixKindRound), mixSchedule(rng, server, n.ways(), mixKindRound)
		t.Logf("network: %v\nserver: %v", one, other)
		var wg sync.WaitGroup
		wg.Go(func() { n.strike(one, network) })
		n.strike(other, network)
		wg.Wait()
		f.idle(time.Now(), silence+f.plan.Watchdog+time.Second, "all calls return after the faults")
		f.fine()
	}
	f.clean()
	f.end()
}

// A quorum of three servers under random faults. While they strike one server at a time, with all its data or with one
// process's connection to it, no Lock fails because of that. When two servers are stopped or have lost their data, the
// ctx of holders ends before their leases can, and Locks fail with ErrUnreachable. No two callers ever share the lock;
// after the faults all calls return, and nothing is left. G1, G2, G4 to G6, G8, G9.
func TestMixOfFaultsQuorum(t *testing.T) {
	t.Parallel()
	f := newFamily(t, familyPlan{
		Kinds: []string{"quorum"}, Each: 4, Seed: faultsSeed(t), Watchdog: time.Second,
		Step: 5 * time.Millisecond, Rest: 5 * time.Millisecond, Outages: true,
	}, redistest.Start(t), redistest.Start(t), redistest.Start(t))
	n := f.nemesis(3)
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
		steps := mixSchedule(rng, faults, n.ways(), mixKindRound)
		t.Logf("%v", steps)
		n.strike(steps, network)
		require.Zero(t, f.unreached(), "Locks succeed without one server")
		f.idle(time.Now(), f.plan.Watchdog+time.Second, "all calls return after the faults")
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
	f.clean()
	f.end()
}

// Faulty clients now and then treat a refused lock as theirs: a quorum that trusts a minority of servers, and an All
// that goes in with only some of its locks. The witness notices (G1).
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
