package faults

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// newSoak returns a run of processes that take locks of every kind, on three servers. The watchdog time is longer than
// a busy machine stalls a process, so no hold may be lost.
func newSoak(t *testing.T, sabotage string) *family {
	t.Helper()
	kinds := []string{"plain", "fenced", "fair", "read/write", "without re-entry", "min hold", "max hold", "grace", "all", "quorum"}
	return newFamily(t, familyPlan{
		Kinds: kinds, Each: 2, Seed: faultsSeed(t), Watchdog: 4 * time.Second, Step: 2 * time.Millisecond, Rest: 15 * time.Millisecond,
		Sabotage: sabotage,
	}, redistest.Start(t), redistest.Start(t), redistest.Start(t))
}

// startProcesses starts the given number of processes, connected directly.
func (f *family) startProcesses(processes int) {
	f.t.Helper()
	var ways []string
	for _, s := range f.servers {
		ways = append(ways, s.Addr())
	}
	began := len(f.peers)
	for len(f.peers) < processes {
		f.start(ways)
	}
	f.ready(f.peers[began:])
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
		f.startProcesses(processes)
		f.goOn()
		sleep(time.Second + time.Duration(rng.Int64N(int64(time.Second))))
		names := f.witness.names()
		for range 1 + rng.IntN(processes-1) {
			victim := f.peers[rng.IntN(len(f.peers))]
			if _, last := f.witness.seen(names[rng.IntN(len(names))]); rng.IntN(4) > 0 {
				if i := slices.IndexFunc(f.peers, func(p *familyPeer) bool { return p.name == last }); i >= 0 {
					victim = f.peers[i]
				}
			}
			victim.kill()
			f.peers = slices.DeleteFunc(f.peers, func(p *familyPeer) bool { return p == victim })
			killed = time.Now()
			sleep(time.Duration(rng.Int64N(int64(300 * time.Millisecond))))
		}
		f.idle(killed, f.plan.Watchdog+familyGrace+time.Second, "all get on")
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
	f.startProcesses(2)
	f.goOn()
	for _, kind := range append(slices.Clone(f.plan.Kinds[:8]), "all:0", "all:1", "quorum") {
		redistest.Eventually(t, histPatience, func() bool { return f.witness.overlap(kind) != "" }, kind)
	}
}

// familyPlan is the plan for the workers of a process, passed as JSON.
type familyPlan struct {
	Peer     string
	Servers  []familyServer
	Kinds    []string // of the locks, see familyTurns
	Each     int      // goroutines per kind
	Seed     uint64
	Watchdog time.Duration
	Step     time.Duration // average length of a step; a section has a few
	Rest     time.Duration // average time between two turns
	Outages  bool          // Redis may be unreachable: calls may report that, and holds may be lost
	Sabotage string        // see histPlan; workers do histNoLock, their Clients the others
}

// familyServer is a server and the proxy through which a Client connects to it.
type familyServer struct{ Addr, Via string }

// familyProcess is a process of workers. Its parent sends commands by lines on stdin; it reports events on stdout.
type familyProcess struct {
	plan    familyPlan
	clients []*rlock.Client
	rdbs    []rueidis.Client // of the Clients
	turns   sync.RWMutex     // read-locked by a worker during its turn
	holding atomic.Bool      // the turns must end soon
	over    atomic.Bool
	workers sync.WaitGroup

	mu sync.Mutex // guards standard output
}

// say writes one line at once, so that the parent gets all lines written before a kill.
func (p *familyProcess) say(words ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = os.Stdout.WriteString(strings.Join(words, "\t") + "\n")
}

// familyRole is the main function of a familyProcess. Its commands:
//
//	go     starts the turns, without an answer
//	hold   waits for the current turns, stops further ones, and answers "idle"
//	quiet  closes the Clients, which ends all background work, takes new ones, and answers "idle"
//	each   takes each lock, which must be free, and answers "idle"
//	end    ends the idle workers and the clients, and answers "closed"
func familyRole(args []string) int {
	p := &familyProcess{}
	if err := json.Unmarshal([]byte(args[0]), &p.plan); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := p.connect(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	p.turns.Lock()
	for i, kind := range p.plan.Kinds {
		for j := range p.plan.Each {
			n := uint64(i*p.plan.Each + j)
			w := &familyWorker{familyProcess: p, kind: kind, number: n, rng: rand.New(rand.NewPCG(p.plan.Seed, n))}
			p.workers.Go(w.run) // ended by the command end
		}
	}
	p.say("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		go p.do(in.Text()) // ends with the command, or with the process when the parent dies
	}
	return 0
}

// connect makes a Client for each server.
func (p *familyProcess) connect() error {
	for _, s := range p.plan.Servers {
		rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr}, DialCtxFn: s.dial, ClientName: p.plan.Peer})
		if err != nil {
			return err
		}
		switch p.plan.Sabotage {
		case histReadAll:
			rdb = histRedis{rdb, newHistLog(), p.plan.Sabotage}
		case countTwice, countNever, countBelief, leasedShort, leasedSlot, leasedAgain:
			rdb = countRedis{rdb, newHistLog(), p.plan.Sabotage}
		}
		c, err := p.newClient(rdb)
		if err != nil {
			return err
		}
		p.clients, p.rdbs = append(p.clients, c), append(p.rdbs, rdb)
	}
	return nil
}

func (p *familyProcess) newClient(rdb rueidis.Client) (*rlock.Client, error) {
	return rlock.New(rdb, rlock.Options{WatchdogTimeout: p.plan.Watchdog})
}

// do executes a command of the parent, which waits for the answer.
func (p *familyProcess) do(command string) {
	switch command {
	case "go":
		p.holding.Store(false)
		p.turns.Unlock()
	case "hold":
		p.holding.Store(true)
		p.turns.Lock()
		p.say("idle")
	case "quiet":
		for i := range p.clients {
			p.clients[i].Close()
			p.clients[i], _ = p.newClient(p.rdbs[i]) // as before
		}
		p.say("idle")
	case "each":
		p.each()
		p.say("idle")
	case "end":
		p.over.Store(true)
		p.turns.Unlock()
		p.workers.Wait()
		for _, c := range p.clients {
			c.Close()
		}
		p.say("closed")
	}
}

func (s familyServer) dial(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
	if addr == s.Addr {
		addr = s.Via
	}
	return d.DialContext(ctx, "tcp", addr)
}

// each takes each lock in turn.
func (p *familyProcess) each() {
	for _, kind := range p.plan.Kinds {
		w := &familyWorker{familyProcess: p, kind: kind, number: familyLast, atOnce: true, rng: rand.New(rand.NewPCG(p.plan.Seed, familyLast))}
		familyTurns[kind](w)
	}
}
