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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// workPlan is the plan for a process of workers, passed as JSON.
type workPlan struct {
	Peer     string
	Clients  []workClient
	Kinds    []string // of the locks, see familyTurns; or the kind of a history
	Each     int      // goroutines per kind; of a history, per Client
	Seed     uint64
	Watchdog time.Duration
	Step     time.Duration // average length of a step, of which a section has a few; of a history, of a section
	Rest     time.Duration // average time between two turns
	Outages  bool          // Redis may be unreachable: calls may report that, and holds may be lost
	Sabotage string        // workers do histNoLock, histDeaf and histShared, their Clients the others

	// Of a history:
	Names   []string // of the locks
	Fenced  []string // names with fencing tokens
	Unguard []string // names whose keys may be deleted, under their holders
	Along   int      // percentage of exported holds
	Spoken  bool     // use WithAsked and WithLinger, at random
}

// workClient is a Client of a process.
type workClient struct {
	Addr, Via string        // of the server, and of the proxy in front of it
	Messages  string        // if set, the address of the server with the subscriptions, a replica
	HandOff   rlock.HandOff // its bounds, see histBounds
	First     int           // number of its first worker in a history
}

func (p workPlan) is(kind string) bool { return slices.Contains(p.Kinds, kind) }

func (p workPlan) history() bool { return len(p.Names) > 0 }

// workProcess is a process of workers. Its parent sends commands by lines on stdin; it reports events on stdout.
type workProcess struct {
	plan    workPlan
	clients []*rlock.Client
	rdbs    []rueidis.Client // of the Clients
	crews   []*histCrew      // of the Clients of a history
	turns   sync.RWMutex     // read-locked by a worker during its turn
	holding atomic.Bool      // the turns must end soon
	over    atomic.Bool
	workers sync.WaitGroup

	out sync.Mutex // guards standard output
}

// say writes one line at once, so that the parent gets all lines written before a kill.
func (p *workProcess) say(words ...string) {
	p.out.Lock()
	defer p.out.Unlock()
	_, _ = os.Stdout.WriteString(strings.Join(words, "\t") + "\n")
}

// sayIn tells the witness of a stay in locks, see familyWitness.hear.
func (p *workProcess) sayIn(id, mode string, last, taken, token int64, names ...string) {
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	p.say(append([]string{"in", id, mode, number(last), number(taken), number(token)}, names...)...)
}

// answer says a value of the parent's type.
func (p *workProcess) answer(what string, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	p.say(what, string(text))
}

// workRole is the main function of a workProcess. Its commands:
//
//	go      starts the turns, without an answer
//	hold    waits for the current turns, says "returned" when one ends, stops further ones, and answers "idle"
//	quiet   closes the Clients, which ends all background work, takes new ones, and answers "idle"
//	each    takes each lock, which must be free, and answers "idle"
//	tally   answers with the histTally of each Client so far
//	report  answers with the idle Clients' reports for a history
//	end     ends the idle workers and the clients, and answers "closed"
//
// It lives until stdin ends, so only its calls, not its exit, can leave anything in Redis.
func workRole(args []string) int {
	p := &workProcess{}
	if err := json.Unmarshal([]byte(args[0]), &p.plan); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := p.connect(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	p.turns.Lock()
	if !p.plan.history() {
		for i, kind := range p.plan.Kinds {
			for j := range p.plan.Each {
				w := p.worker(kind, i*p.plan.Each+j)
				p.workers.Go(func() { p.work(w.rng, w.turn) }) // ended by the command end
			}
		}
	}
	for i, c := range p.crews {
		for j := range p.plan.Each {
			w := c.worker(p.plan.Clients[i].First + j)
			p.workers.Go(func() { p.work(w.rng, w.turn) }) // ended by the command end
		}
	}
	p.say("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		go p.do(in.Text()) // ends with the command, or with the process when the parent dies
	}
	return 0
}

// work takes turns until the process is over.
func (p *workProcess) work(rng *rand.Rand, turn func()) {
	for {
		p.turns.RLock()
		if p.over.Load() {
			p.turns.RUnlock()
			return
		}
		turn()
		if p.holding.Load() {
			p.say("returned")
		}
		p.turns.RUnlock()
		if p.plan.Rest > 0 {
			sleep(time.Duration(rng.Int64N(2*int64(p.plan.Rest) + 1)))
		}
	}
}

// connect makes the Clients.
func (p *workProcess) connect() error {
	for _, one := range p.plan.Clients {
		rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{one.Addr}, DialCtxFn: one.dial, ClientName: p.plan.Peer})
		if err != nil {
			return err
		}
		if one.Messages != "" {
			messages, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{one.Messages}})
			if err != nil {
				return err
			}
			rdb = redistest.Split{Client: rdb, Messages: messages}
		}
		log := newHistLog()
		switch p.plan.Sabotage {
		case countTwice, countNever, countBelief, leasedShort, leasedSlot, leasedAgain:
			rdb = countRedis{rdb, log, p.plan.Sabotage}
		default:
			if p.plan.history() || p.plan.Sabotage == histReadAll {
				rdb = histRedis{rdb, log, p.plan.Sabotage}
			}
		}
		c, err := p.newClient(rdb, one)
		if err != nil {
			return err
		}
		p.clients, p.rdbs = append(p.clients, c), append(p.rdbs, rdb)
		if p.plan.history() {
			p.crews = append(p.crews, newHistCrew(p, log, c, one.First))
		}
	}
	return nil
}

func (p *workProcess) newClient(rdb rueidis.Client, one workClient) (*rlock.Client, error) {
	o := rlock.Options{WatchdogTimeout: p.plan.Watchdog, HandOff: one.HandOff}
	if p.plan.history() && !p.plan.is(histRW) {
		o.Trace = &rlock.Trace{Acquired: func(ctx context.Context, info rlock.AcquiredInfo) {
			if info.Path == rlock.PathReentry {
				histReentered.Store(ctx, true)
			}
		}}
	}
	return rlock.New(rdb, o)
}

// do executes a command of the parent, which waits for the answer.
func (p *workProcess) do(command string) {
	switch command {
	case "go":
		p.holding.Store(false)
		p.turns.Unlock()
	case "hold":
		p.holding.Store(true)
		for _, c := range p.crews {
			c.log.ends()
		}
		p.turns.Lock()
		p.say("idle")
	case "quiet":
		for i := range p.clients {
			p.clients[i].Close()
			p.clients[i], _ = p.newClient(p.rdbs[i], p.plan.Clients[i]) // as before
		}
		p.say("idle")
	case "each":
		p.each()
		p.say("idle")
	case "tally":
		var all []histTally
		for _, c := range p.crews {
			all = append(all, c.soFar())
		}
		p.answer("tally", all)
	case "report":
		var all []histReport
		for _, c := range p.crews {
			all = append(all, c.report())
		}
		p.answer("report", all)
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

func (c workClient) dial(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
	if addr == c.Addr {
		addr = c.Via
	}
	return d.DialContext(ctx, "tcp", addr)
}

// each takes each lock in turn, of a history with each Client.
func (p *workProcess) each() {
	for _, c := range p.crews {
		for _, name := range p.plan.Names {
			if err := p.plan.mutex(c.client, name).TryDo(context.Background(), patience, nothing); err != nil {
				c.wrong(fmt.Errorf("%s must be free: %w", name, err))
			}
		}
	}
	if p.plan.history() {
		return
	}
	for _, kind := range p.plan.Kinds {
		w := p.worker(kind, familyLast)
		w.atOnce = true
		w.turn()
	}
}

func (p *workProcess) worker(kind string, number int) *familyWorker {
	return &familyWorker{workProcess: p, kind: kind, number: number, rng: rand.New(rand.NewPCG(p.plan.Seed, uint64(number)))}
}
