package faults

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// family is a run: servers, processes that take locks of several kinds on them, and a witness.
type family struct {
	t       *testing.T
	plan    familyPlan
	servers []*redistest.Server
	direct  []rueidis.Client
	peers   []*familyPeer
	number  int // of the next process
	witness *familyWitness
	calls   countCalls

	mu          sync.Mutex // guards the following
	wrong       []string   // errors that no caller should get
	unreachable int        // Locks that failed with ErrUnreachable
}

// familyPeer is the parent's side of a familyProcess.
type familyPeer struct {
	*child

	name string
	said chan string // answers to commands
}

func newFamily(t *testing.T, plan familyPlan, servers ...*redistest.Server) *family {
	t.Helper()
	f := &family{t: t, plan: plan, servers: servers, witness: newFamilyWitness()}
	for _, s := range servers {
		f.direct = append(f.direct, s.Client(t))
	}
	return f
}

// start starts one more process, connected to the servers by the given ways. Its workers are idle.
func (f *family) start(ways []string) {
	f.t.Helper()
	f.number++
	plan := f.plan
	plan.Peer, plan.Seed = fmt.Sprint("p", f.number), f.plan.Seed+uint64(f.number)<<32
	for i, s := range f.servers {
		plan.Servers = append(plan.Servers, familyServer{s.Addr(), ways[i]})
	}
	text, err := json.Marshal(plan)
	require.NoError(f.t, err)
	p := &familyPeer{name: plan.Peer, said: make(chan string, 10)}
	p.child = startChild(f.t, "family", func(line string) { f.hear(p, line) }, string(text))
	f.peers = append(f.peers, p)
}

// ready waits for started processes.
func (f *family) ready(peers []*familyPeer) {
	f.t.Helper()
	f.await(peers, "ready", time.Now(), histReturn, "it must start")
}

// hear handles a line of a process.
func (f *family) hear(p *familyPeer, line string) {
	if f.witness.hear(p.name, line) || f.calls.hear(p.name, line) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch what, rest, _ := strings.Cut(line, "\t"); what {
	case "wrong":
		f.wrong = append(f.wrong, p.name+": "+rest)
	case "unreachable":
		f.unreachable++
	default:
		p.said <- line
	}
}

// ask sends a command to processes, and requires that all of them answer within the given time after since.
func (f *family) ask(peers []*familyPeer, command, want string, since time.Time, within time.Duration, why string) {
	f.t.Helper()
	for _, p := range peers {
		p.send(f.t, command)
	}
	f.await(peers, want, since, within, why)
}

// await requires want from all processes, within the given time after since. Stalls of this process do not count.
func (f *family) await(peers []*familyPeer, want string, since time.Time, within time.Duration, why string) {
	f.t.Helper()
	var machine stalls
	for _, p := range peers {
		for said := false; !said; {
			select {
			case line := <-p.said:
				require.Equal(f.t, want, line, why)
				said = true
				continue
			case <-p.done:
				require.FailNow(f.t, "a process has ended", p.name)
			default:
				machine.step()
			}
			if took, _ := machine.clear(span{since, time.Now()}); took > within {
				for i, rdb := range f.direct {
					f.t.Logf("server %d: %s", i, familyKeys(f.t, rdb))
				}
				f.fine()
				require.FailNow(f.t, "not in time", "%s: %s within %v: %s", p.name, want, within, why)
			}
		}
	}
}

// goOn starts the workers' turns.
func (f *family) goOn() {
	f.t.Helper()
	for _, p := range f.peers {
		p.send(f.t, "go")
	}
}

// idle ends all turns, and requires that all callers return within the given time after since.
func (f *family) idle(since time.Time, within time.Duration, why string) {
	f.t.Helper()
	f.ask(f.peers, "hold", "idle", since, within, why)
}

// unreached returns how many Locks failed with ErrUnreachable.
func (f *family) unreached() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unreachable
}

// forgive resets the count of unreached.
func (f *family) forgive() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unreachable = 0
}

// fine requires that no caller got an unexpected error, and that no two holders were in a lock at once.
func (f *family) fine() {
	f.t.Helper()
	f.mu.Lock()
	wrong := f.wrong
	f.mu.Unlock()
	require.Empty(f.t, wrong)
	for _, name := range f.witness.names() {
		require.Empty(f.t, f.witness.overlap(name), "G1")
	}
}

// end asserts that nothing is left when all processes are idle and the leases of killed ones have expired. By then
// each lock can be acquired at once.
func (f *family) end() {
	f.t.Helper()
	f.ask(f.peers[:1], "each", "idle", time.Now(), histReturn, "each Lock must return at once")
	f.fine()
	f.ask(f.peers, "end", "closed", time.Now(), 2*histReturn, "G9")
	f.clean()
	for _, p := range f.peers {
		require.NoError(f.t, p.stdin.Close())
	}
	all := 0
	for _, name := range f.witness.names() {
		n, _ := f.witness.seen(name)
		f.t.Logf("%-20s %6d stays", name, n)
		all += n
	}
	f.t.Logf("%d processes, %d stays", f.number, all)
}

// clean asserts that no lock has left a key or channel on a server.
func (f *family) clean() {
	f.t.Helper()
	for i, rdb := range f.direct {
		redistest.Eventually(f.t, patience+f.plan.Watchdog, func() bool { return familyKeys(f.t, rdb) == "[] []" },
			fmt.Sprintf("G5: no key or channel may be left on server %d", i))
	}
}

// familyKeys lists the keys and channels of a server, without the fencing counters, which stay.
func familyKeys(t *testing.T, rdb rueidis.Client) string {
	t.Helper()
	keys, err := do(t, rdb, "KEYS", "*").AsStrSlice()
	if err != nil {
		return err.Error()
	}
	left := []string{}
	for _, key := range keys {
		if !strings.HasPrefix(key, "redisson_lock_token:") {
			left = append(left, key)
		}
	}
	channels, err := do(t, rdb, "PUBSUB", "CHANNELS").AsStrSlice()
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(left, channels)
}
