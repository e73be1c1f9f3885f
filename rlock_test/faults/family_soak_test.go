package faults

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// newSoak returns a run of processes that take locks of every kind, on three servers. The watchdog time is longer than
// a busy machine stalls a process, so no hold may be lost.
func newSoak(t *testing.T, sabotage string) *family {
	t.Helper()
	kinds := []string{"plain", "fenced", "fair", "read/write", "without re-entry", "min hold", "max hold", "grace", "all", "quorum"}
	return newFamily(t, workPlan{
		Kinds: kinds, Each: 2, Seed: faultsSeed(t), Watchdog: 4 * time.Second, Step: 2 * time.Millisecond, Rest: 15 * time.Millisecond,
		Sabotage: sabotage,
	}, redistest.Start(t), redistest.Start(t), redistest.Start(t))
}

// Fault 5, G1, G3 to G9: processes take locks of every kind, with waits that are cancelled, short or zero. In each
// burst some processes are killed, mostly just after they were seen in a lock. Within a killed process's lease and a
// second, all other calls return, and Locks without a bound return with the lock. Nobody is in a lock beside a caller
// that it excludes, and all errors are documented. No key, queue place, channel or goroutine is left.
func TestSoakOfEveryKind(t *testing.T) {
	t.Parallel()
	const processes = 4
	f := newSoak(t, "")
	rng := rand.New(rand.NewPCG(f.plan.Seed, 0))
	var killed time.Time
	var slowest time.Duration
	bursts := 0
	for end := time.Now().Add(faultsDuration(t, 20*time.Second)); time.Now().Before(end); bursts++ {
		f.startProcesses(processes, f.straight)
		f.goOn()
		sleep(time.Second + time.Duration(rng.Int64N(int64(time.Second))))
		names := f.witness.names()
		for range 1 + rng.IntN(processes-1) {
			victim := f.peers[rng.IntN(len(f.peers))]
			if _, last := f.witness.seen(names[rng.IntN(len(names))]); rng.IntN(4) > 0 {
				if i := slices.IndexFunc(f.peers, func(p *workPeer) bool { return p.name == last }); i >= 0 {
					victim = f.peers[i]
				}
			}
			victim.kill()
			f.peers = slices.DeleteFunc(f.peers, func(p *workPeer) bool { return p == victim })
			killed = time.Now()
			sleep(time.Duration(rng.Int64N(int64(300 * time.Millisecond))))
		}
		f.drain(killed, f.plan.Watchdog+familyGrace+time.Second, "all get on")
		slowest = max(slowest, time.Since(killed))
		f.fine()
	}
	sleep(time.Until(killed.Add(f.plan.Watchdog + familyGrace)))
	f.end()
	t.Logf("%d bursts, all calls returned within %v of a kill", bursts, slowest)
}

// Workers that sometimes enter without the lock (G1): the witness notices them, for every kind.
func TestSoakSeesWorkersWithoutLock(t *testing.T) {
	t.Parallel()
	f := newSoak(t, histNoLock)
	f.startProcesses(2, f.straight)
	f.goOn()
	for _, kind := range append(slices.Clone(f.plan.Kinds[:8]), "all:0", "all:1", "quorum") {
		redistest.Eventually(t, histPatience, func() bool { return f.witness.overlap(kind) != "" }, kind)
	}
}
