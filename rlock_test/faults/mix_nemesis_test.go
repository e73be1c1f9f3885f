package faults

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// mixNemesis carries out schedules of faults: of the servers of a family, and of the connections to them, of which each Client has its own.
type mixNemesis struct {
	*family

	gates    []*mixGate   // one per proxy
	delete   func()       // deletes a key under its holder
	handOffs atomic.Int64 // hit by a fault
	spoken   atomic.Int64 // messages to holders hit by a fault
}

// mixGate has the current strikes of a proxy's hooks.
type mixGate struct {
	request, reply   atomic.Pointer[mixStrike]
	handOffs, spoken *atomic.Int64
}

// mixStrike hits the n-th matching command, or all of them if n is 0.
type mixStrike struct {
	meant   func(cmd []string) bool
	n, seen int // guarded by the proxy: it calls one hook at a time
	act     redistest.Action
}

func (g *mixGate) hook(s *mixStrike, cmd []string) redistest.Action {
	if s == nil {
		return redistest.Pass
	}
	act := s.hook(cmd)
	switch {
	case act == redistest.Pass:
	case mixHandOff(cmd):
		g.handOffs.Add(1)
	case isSpoken(cmd):
		g.spoken.Add(1)
	}
	return act
}

func (s *mixStrike) hook(cmd []string) redistest.Action {
	if !s.meant(cmd) {
		return redistest.Pass
	}
	if s.seen++; s.n == 0 || s.seen == s.n {
		return s.act
	}
	return redistest.Pass
}

// nemesis returns the nemesis of the processes started so far.
func (f *family) nemesis(deletes func()) *mixNemesis {
	n := &mixNemesis{family: f, delete: deletes}
	for _, p := range f.proxies {
		g := &mixGate{handOffs: &n.handOffs, spoken: &n.spoken}
		p.OnRequest(func(cmd []string) redistest.Action { return g.hook(g.request.Load(), cmd) })
		p.OnReply(func(cmd []string) redistest.Action { return g.hook(g.reply.Load(), cmd) })
		n.gates = append(n.gates, g)
	}
	return n
}

// run carries out both schedules, and returns when both are over and nothing is broken any more.
// The test's goroutine makes the server faults, since they can fail the test.
func (n *mixNemesis) run(network, server []mixStep) {
	n.t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() { n.strikes(network) })
	n.strikes(server)
	wg.Wait()
}

// strikes carries out a schedule, one fault after another.
func (n *mixNemesis) strikes(steps []mixStep) {
	n.t.Helper()
	for _, s := range steps {
		n.strike(s)
		sleep(s.Rest)
	}
}

func mixScript(cmd []string) bool { return cmd[0] == "EVALSHA" || cmd[0] == "EVAL" }

func isMessage(cmd []string) bool { return len(cmd) == 3 && strings.HasSuffix(cmd[0], "MESSAGE") }

// isGrant reports whether cmd is the message that hands the lock to this proxy's process.
func isGrant(cmd []string) bool {
	if !isMessage(cmd) {
		return false
	}
	_, _, ok := histGrant(cmd[2])
	return ok
}

// isWatch reports whether cmd is the message that gives a successor the time to look.
func isWatch(cmd []string) bool {
	return isMessage(cmd) && strings.HasPrefix(cmd[2], "? ") && cmd[2] != "? 0"
}

// once acts on the first frame for which meant is true.
func once(meant func([]string) bool, act redistest.Action) redistest.Hook {
	return (&mixStrike{meant: meant, n: 1, act: act}).hook
}

func mixHandOff(cmd []string) bool {
	c, ok := parseHistScript(cmd)
	return ok && c.what == "hand-off"
}

// isEar reports whether a channel is a Client's ear.
func isEar(channel string) bool { return strings.HasPrefix(channel, "rlock_client:") }

// isSpoken reports whether cmd is a message to a Client's ear.
func isSpoken(cmd []string) bool { return isMessage(cmd) && isEar(cmd[1]) }

// mixSpeaks reports whether cmd sends such a message.
func mixSpeaks(cmd []string) bool { return cmd[0] == "PUBLISH" && isEar(cmd[1]) }

const (
	mixAll    = 0  // strikes each
	mixRandom = -1 // strikes the N-th of its step
	mixLoads  = "LOADING Redis is loading the dataset in memory"
)

// mixStrikes are the faults that hit commands or messages on their way.
var mixStrikes = map[string]struct {
	meant func(cmd []string) bool
	reply bool // or a message; otherwise the request
	n     int
	act   redistest.Action
}{
	"lost reply":    {mixScript, true, mixRandom, redistest.Cut},
	"lost replies":  {mixScript, true, mixAll, redistest.Cut},
	"silent reply":  {mixScript, true, mixRandom, redistest.Drop},
	"late reply":    {mixScript, true, mixRandom, redistest.Hold},
	"lost request":  {mixScript, false, mixRandom, redistest.Cut},
	"lost requests": {mixScript, false, mixAll, redistest.Cut},
	"late request":  {mixScript, false, mixRandom, redistest.Hold},
	"-LOADING":      {mixScript, false, mixAll, redistest.Fail(mixLoads)},
	"-BUSY":         {mixScript, false, mixAll, redistest.Fail("BUSY Redis is busy running a script.")},
	"-READONLY":     {mixScript, false, mixAll, redistest.Fail("READONLY You can't write against a read only replica.")},

	"lost hand-off":       {mixHandOff, false, 1, redistest.Cut},
	"lost hand-off reply": {mixHandOff, true, 1, redistest.Cut},
	"late hand-off":       {mixHandOff, false, 1, redistest.Hold},
	"late hand-off reply": {mixHandOff, true, 1, redistest.Hold},

	"lost grant":              {isGrant, true, 1, redistest.Drop},
	"cut grant":               {isGrant, true, 1, redistest.Cut},
	"late grant":              {isGrant, true, 1, redistest.Hold},
	"lost grants and watches": {func(cmd []string) bool { return isGrant(cmd) || isWatch(cmd) }, true, mixAll, redistest.Drop},

	"lost message":   {isMessage, true, 1, redistest.Drop},
	"held subscribe": {func(cmd []string) bool { return cmd[0] == "SUBSCRIBE" }, false, mixAll, redistest.Hold},

	"cut ear":          {isSpoken, true, 1, redistest.Cut},
	"deaf ear":         {isSpoken, true, mixAll, redistest.Drop},
	"late ear":         {isSpoken, true, 1, redistest.Hold},
	"lost speech":      {mixSpeaks, false, mixAll, redistest.Cut},
	"late speech":      {mixSpeaks, false, 1, redistest.Hold},
	"unknown speech":   {mixSpeaks, true, mixAll, redistest.Cut},
	"forbidden speech": {mixSpeaks, false, mixAll, redistest.Fail(mixLoads)},
}

// strikeNetwork hits the connections of one client.
func (n *mixNemesis) strikeNetwork(s mixStep) {
	p, g := n.proxies[s.Proxy], n.gates[s.Proxy]
	if row, ok := mixStrikes[s.Fault]; ok {
		way, strike := &g.request, &mixStrike{meant: row.meant, n: row.n, act: row.act}
		if row.reply {
			way = &g.reply
		}
		if row.n == mixRandom {
			strike.n = s.N
		}
		way.Store(strike)
		sleep(s.For)
		way.Store(nil)
		if row.act == redistest.Hold {
			p.Release()
		}
		if s.Fault == "silent reply" { // no lost message leaves the connection silent
			p.CutAll()
		}
		return
	}
	switch s.Fault {
	case "delay":
		p.Delay(time.Duration(s.N) * 5 * time.Millisecond)
		sleep(s.For)
		p.Delay(0)
	case "cut":
		p.CutAll()
	case "black hole":
		p.BlackHole(true)
		sleep(s.For)
		p.BlackHole(false)
	case "refused":
		p.Refuse(true)
		p.CutAll()
		sleep(s.For)
		p.Refuse(false)
	case "doubled ear":
		said := make(chan []string, 100)
		g.reply.Store(&mixStrike{meant: func(cmd []string) bool {
			if isSpoken(cmd) && len(said) < cap(said) {
				said <- cmd
			}
			return false
		}})
		sleep(s.For)
		g.reply.Store(nil)
		for len(said) > 0 {
			m := <-said
			n.ask(s, "PUBLISH", m[1], m[2])
		}
	default:
		panic(fmt.Sprintf("no such fault: %s", s.Fault))
	}
}

// strike hits a server, or the connections of one Client.
func (n *mixNemesis) strike(s mixStep) {
	n.t.Helper()
	server := n.servers[s.Proxy%len(n.servers)]
	switch s.Fault {
	case "kill clients":
		n.ask(s, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	case "kill pubsub":
		n.ask(s, "CLIENT", "KILL", "TYPE", "pubsub")
	case "script flush":
		histFor(s.For, 5*time.Millisecond, func() { n.ask(s, "SCRIPT", "FLUSH") })
	case "short stop", "long stop":
		server.Pause()
		sleep(s.For)
		server.Resume()
	case "crash":
		server.Kill()
		sleep(s.For)
		server.Restart()
	case "delete":
		redistest.Eventually(n.t, 10*time.Second, func() bool { return n.ask(s, "PING") }, "the server must answer")
		n.delete()
	default:
		n.strikeNetwork(s)
	}
}

// ask reports whether the step's server answered a command; a broken connection is no failure of the test.
func (n *mixNemesis) ask(s mixStep, cmd ...string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	rdb := n.direct[s.Proxy%len(n.direct)]
	return rdb.Do(ctx, rdb.B().Arbitrary(cmd...).Build()).Error() == nil
}
