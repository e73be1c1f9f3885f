package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// histPlan is the plan for the workers of a run. Other processes get it as JSON.
type histPlan struct {
	Addr     string   // of the server, or of a proxy in front of it
	Messages string   // if set, the address of the server with the subscriptions, a replica
	Dir      string   // directory of the witness's files
	Kind     string   // of the locks: "", histRW or histFair
	Names    []string // of the locks
	Fenced   []string // names with fencing tokens
	Unguard  []string // names whose keys may be deleted: no witness
	Workers  int
	First    int // number of the first worker
	Seed     uint64
	Watchdog time.Duration
	Pause    time.Duration // average duration of a section
	HandOff  rlock.HandOff // the bounds of this client, see histBounds
	Along    int           // percentage of exported holds
	Spoken   bool          // use WithAsked and WithLinger, at random
	Sabotage string        // see histWorker
}

func (p histPlan) options() rlock.Options {
	return rlock.Options{WatchdogTimeout: p.Watchdog, HandOff: p.HandOff, Trace: &rlock.Trace{
		Acquired: func(ctx context.Context, info rlock.AcquiredInfo) {
			if info.Path == rlock.PathReentry && p.Kind != histRW {
				histReentered.Store(ctx, true)
			}
		},
	}}
}

// histEvent is something that may happen in a run.
type histEvent string

const (
	sections, nested, refused, cancelled, lost, failed histEvent = "sections", "nested", "refused", "cancelled", "lost", "failed"

	inside, beside, escaped, sticks histEvent = "inside", "beside", "escaped", "sticky" // see crowd, escape and failed
	exported, moved, asked          histEvent = "exported", "moved", "asked"            // moved: adopted by another worker
	torn                            histEvent = "torn"                                  // a read of the witness that saw a concurrent change

	handOffs, grants, kept histEvent = "hand-offs", "grants", "kept" // see rlock.Stats
)

// histTally counts events, so that a test can require them.
type histTally struct {
	Events    map[histEvent]int64
	Written   map[string]int64 // by the witness
	Straddled map[string]int64 // writes of Written made after the loss of their lock
	Failures  []string         // of the calls that failed
}

func newHistTally() histTally {
	return histTally{make(map[histEvent]int64), make(map[string]int64), make(map[string]int64), nil}
}

// add adds the counts of another process or Client.
func (t *histTally) add(o histTally) {
	for e, n := range o.Events {
		t.Events[e] += n
	}
	for name, n := range o.Written {
		t.Written[name] += n
	}
	for name, n := range o.Straddled {
		t.Straddled[name] += n
	}
	t.Failures = append(t.Failures, o.Failures...)
}

// histBounds draws the hand-off bounds of each client. Every other client has the defaults; the rest give the lock to other processes after
// one or two sections, so that a run exercises both.
func histBounds(seed uint64, clients int) []rlock.HandOff {
	rng := rand.New(rand.NewPCG(seed, 1<<32)) // not the stream of a worker or a schedule
	bounds := make([]rlock.HandOff, clients)
	for i := rng.IntN(2); i < clients; i += 2 {
		bounds[i].Most = 1 + rng.IntN(2)
		if rng.IntN(2) == 0 {
			bounds[i].For = time.Duration(1+rng.IntN(50)) * time.Millisecond
		}
	}
	return bounds
}

func (p histPlan) model() porcupine.Model {
	if p.Kind == histRW {
		return rwModel
	}
	return histModel
}

// mutex returns an exclusive handle on a lock of the plan's kind.
func (p histPlan) mutex(c *rlock.Client, name string) *rlock.Mutex {
	switch p.Kind {
	case histRW:
		return c.RWMutex(name).Write()
	case histFair:
		return c.FairMutex(name)
	}
	return c.Mutex(name)
}

// histReturn is how long a call may take to return after the nemesis has stopped: the time for which it
// tries, plus its own wait.
const histReturn = 30 * time.Second

// historyRole is a process of workers. The first line on stdin starts them; the second stops them, and makes it
// report. It lives until stdin ends, so only its calls, not its exit, can leave anything in Redis.
func historyRole(args []string) int {
	var plan histPlan
	if err := json.Unmarshal([]byte(args[0]), &plan); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{plan.Addr}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer rdb.Close()
	log := newHistLog()
	client, err := rlock.New(histRedis{rdb, log, plan.Sabotage}, plan.options())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	crew := newHistCrew(plan, log, client)
	in := bufio.NewReader(os.Stdin)
	heard := func() bool { _, err := in.ReadString('\n'); return err == nil }
	_, _ = os.Stdout.WriteString("ready\n")
	if !heard() {
		return 1
	}
	crew.start()
	if !heard() {
		return 1
	}
	report := crew.end()
	client.Close()
	text, err := json.Marshal(report)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_, _ = os.Stdout.Write(append(text, '\n'))
	_, _ = io.Copy(io.Discard, in)
	return 0
}

// end stops the workers, and requires that all callers return.
func (c *histCrew) end() histReport {
	close(c.stop)
	c.log.mu.Lock()
	c.log.ending = true
	c.log.mu.Unlock()
	done := make(chan struct{})
	go func() { // ends with the workers
		defer close(done)
		c.wg.Wait()
	}()
	select {
	case <-done:
	case <-time.After(histReturn):
		c.wrong(fmt.Errorf("%d of %d callers did not return", int64(c.plan.Workers)-c.returned.Load(), c.plan.Workers))
	}
	return c.report()
}
