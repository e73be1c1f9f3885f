package faults

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// family is a run: servers, processes of workers that take locks on them, and a witness. A historyRun has models for one kind of lock, a countRun
// for counters.
type family struct {
	t       *testing.T
	plan    workPlan
	servers []*redistest.Server
	direct  []rueidis.Client
	proxies []*redistest.Proxy // of all Clients with one, in their order
	peers   []*workPeer
	number  int // of the next process
	witness *familyWitness
	calls   countCalls

	mu          sync.Mutex // guards the following
	heard       time.Time  // when a process last reported anything
	wrong       []string   // errors that no caller should get
	unreachable int        // Locks that failed with ErrUnreachable
}

// workPeer is the parent's side of a workProcess.
type workPeer struct {
	*child

	name string
	said chan string // answers to commands
}

func newFamily(t *testing.T, plan workPlan, servers ...*redistest.Server) *family {
	t.Helper()
	f := &family{t: t, plan: plan, servers: servers, witness: newFamilyWitness()}
	for _, s := range servers {
		f.direct = append(f.direct, s.Client(t))
	}
	return f
}

// start starts one more process, with the given Clients. Its workers are idle.
func (f *family) start(clients ...workClient) {
	f.t.Helper()
	f.number++
	plan := f.plan
	plan.Peer, plan.Seed, plan.Clients = fmt.Sprint("p", f.number), f.plan.Seed+uint64(f.number)<<32, clients
	text, err := json.Marshal(plan)
	require.NoError(f.t, err)
	p := &workPeer{name: plan.Peer, said: make(chan string, 10)}
	p.child = startChild(f.t, "worker", func(line string) { f.hear(p, line) }, string(text))
	f.peers = append(f.peers, p)
}

// startProcesses starts processes up to the given number.
func (f *family) startProcesses(processes int, connected func() []workClient) {
	f.t.Helper()
	began := len(f.peers)
	for len(f.peers) < processes {
		f.start(connected()...)
	}
	f.ready(f.peers[began:])
}

// straight returns a Client for each server.
func (f *family) straight() (all []workClient) {
	for _, s := range f.servers {
		all = append(all, workClient{Addr: s.Addr(), Via: s.Addr()})
	}
	return all
}

// viaProxies returns a Client for each server, each behind a proxy of its own.
func (f *family) viaProxies() []workClient {
	f.t.Helper()
	all := f.straight()
	for i := range all {
		p := redistest.StartProxy(f.t, all[i].Addr)
		f.proxies, all[i].Via = append(f.proxies, p), p.Addr()
	}
	return all
}

// ready waits for started processes.
func (f *family) ready(peers []*workPeer) {
	f.t.Helper()
	f.await(peers, "ready", at(time.Now()), histReturn, "it must start")
}

// hear handles a line of a process.
func (f *family) hear(p *workPeer, line string) {
	f.mu.Lock()
	f.heard = time.Now()
	f.mu.Unlock()
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
	case "returned": // see drain
	default:
		p.said <- line
	}
}

// ask sends a command to processes, and requires that all of them answer within the given time after since.
func (f *family) ask(peers []*workPeer, command, want string, since time.Time, within time.Duration, why string) {
	f.t.Helper()
	for _, p := range peers {
		p.send(f.t, command)
	}
	f.await(peers, want, at(since), within, why)
}

// await requires want from all processes, within the given time after since.
func (f *family) await(peers []*workPeer, want string, since func() time.Time, within time.Duration, why string) {
	f.t.Helper()
	var machine stalls
	for _, p := range peers {
		require.Equal(f.t, want, f.next(p, &machine, since, within, why), why)
	}
}

func at(t time.Time) func() time.Time { return func() time.Time { return t } }

// next returns a process's answer, within the given time after since. Stalls of this process do not count.
func (f *family) next(p *workPeer, machine *stalls, since func() time.Time, within time.Duration, why string) string {
	f.t.Helper()
	for {
		select {
		case line := <-p.said:
			return line
		case <-p.done:
			require.FailNow(f.t, "a process has ended", p.name)
		default:
			machine.step()
		}
		if took, _ := machine.clear(span{since(), time.Now()}); took > within {
			for i, rdb := range f.direct {
				f.t.Logf("server %d: %s", i, familyKeys(f.t, rdb))
			}
			f.fine()
			require.FailNow(f.t, "not in time", "%s: within %v: %s", p.name, within, why)
		}
	}
}

// answers returns the processes' answers to a command, as values per Client.
func answers[T any](f *family, command string) (all []T) {
	f.t.Helper()
	for _, p := range f.peers {
		p.send(f.t, command)
	}
	var machine stalls
	since := time.Now()
	for _, p := range f.peers {
		var some []T
		_, text, _ := strings.Cut(f.next(p, &machine, at(since), 2*histReturn, command), "\t")
		require.NoError(f.t, json.Unmarshal([]byte(text), &some), "%s", text)
		all = append(all, some...)
	}
	return all
}

// goOn starts the workers' turns.
func (f *family) goOn() {
	f.t.Helper()
	for _, p := range f.peers {
		p.send(f.t, "go")
	}
}

// drain ends all turns, and requires that one of the callers goes on within the given time, after since and after each other: how long all of
// them take is a matter of the machine. No new turns begin, so a call that sleeps is found at the latest when the others have returned.
func (f *family) drain(since time.Time, within time.Duration, why string) {
	f.t.Helper()
	for _, p := range f.peers {
		p.send(f.t, "hold")
	}
	f.await(f.peers, "idle", func() time.Time {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.heard.After(since) {
			return f.heard
		}
		return since
	}, within, why)
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
	if f.plan.Sabotage == "" {
		for _, name := range f.witness.names() {
			if !slices.Contains(f.plan.Unguard, name) {
				require.Empty(f.t, f.witness.overlap(name), "G1")
			}
		}
	}
}

// overlaps reports whether two holders were in a lock at once.
func (f *family) overlaps() bool {
	return slices.ContainsFunc(f.witness.names(), func(name string) bool { return f.witness.overlap(name) != "" })
}

// end asserts that nothing is left when all processes are idle and the leases of killed ones have expired. By then
// each lock can be acquired at once.
func (f *family) end() {
	f.t.Helper()
	f.ask(f.peers[:1], "each", "idle", time.Now(), histReturn, "each Lock must return at once")
	f.fine()
	f.ask(f.peers, "end", "closed", time.Now(), 2*histReturn, "G9")
	f.clean(patience + f.plan.Watchdog)
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

// clean asserts that no lock has left a key, or a channel but those allowed, on a server.
func (f *family) clean(within time.Duration, allowed ...func(channel string) bool) {
	f.t.Helper()
	for i, rdb := range f.direct {
		redistest.Eventually(f.t, within, func() bool { return familyKeys(f.t, rdb, allowed...) == "[] []" },
			fmt.Sprintf("G5: no key or channel may be left on server %d", i))
	}
}

// familyKeys lists the keys and channels of a server, without the fencing counters, which stay.
func familyKeys(t *testing.T, rdb rueidis.Client, allowed ...func(channel string) bool) string {
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
	for _, ok := range allowed {
		channels = slices.DeleteFunc(channels, ok)
	}
	return fmt.Sprint(left, channels)
}
