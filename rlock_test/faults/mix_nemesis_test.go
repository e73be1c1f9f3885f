package faults

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/redistest"
)

// mixNemesis carries out a schedule of faults.
type mixNemesis struct {
	*historyRun

	gates    []*mixGate   // one per proxy
	number   int          // of the key to delete next
	handOffs atomic.Int64 // hit by a fault
	spoken   atomic.Int64 // messages to holders hit by a fault
}

// mixGate has the current strikes of a proxy's hooks.
type mixGate struct {
	request, reply atomic.Pointer[mixStrike]
	handOffs       *atomic.Int64
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
	if act != redistest.Pass && mixHandOff(cmd) {
		g.handOffs.Add(1)
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

func newMixNemesis(b *historyRun) *mixNemesis {
	n := &mixNemesis{historyRun: b}
	for _, p := range b.proxies {
		g := &mixGate{handOffs: &n.handOffs}
		p.OnRequest(func(cmd []string) redistest.Action { return g.hook(g.request.Load(), cmd) })
		p.OnReply(func(cmd []string) redistest.Action { return g.hook(g.reply.Load(), cmd) })
		n.gates = append(n.gates, g)
	}
	return n
}

// run carries out both schedules, and returns when both are over and nothing is broken any more.
// The test's goroutine makes the server faults, since they can fail the test.
func (n *mixNemesis) run(network, server []mixStep) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for _, s := range network {
			n.strikeNetwork(s)
			sleep(s.Rest)
		}
	})
	for _, s := range server {
		n.strikeServer(s)
		sleep(s.Rest)
	}
	wg.Wait()
}

func mixScript(cmd []string) bool { return cmd[0] == "EVALSHA" || cmd[0] == "EVAL" }

func isMessage(cmd []string) bool { return len(cmd) == 3 && strings.HasSuffix(cmd[0], "MESSAGE") }

func mixSubscribe(cmd []string) bool { return cmd[0] == "SUBSCRIBE" }

func mixHandOff(cmd []string) bool {
	c, ok := parseHistScript(cmd)
	return ok && c.what == "hand-off"
}

// strikeNetwork hits the connections of one client.
func (n *mixNemesis) strikeNetwork(s mixStep) {
	p, g := n.proxies[s.Proxy], n.gates[s.Proxy]
	request := func(meant func([]string) bool, nth int, a redistest.Action) {
		g.request.Store(&mixStrike{meant: meant, n: nth, act: a})
		sleep(s.For)
		g.request.Store(nil)
	}
	reply := func(meant func([]string) bool, nth int, a redistest.Action) {
		g.reply.Store(&mixStrike{meant: meant, n: nth, act: a})
		sleep(s.For)
		g.reply.Store(nil)
	}
	if n.strikeSpoken(s, request, reply) {
		return
	}
	switch s.Fault {
	case "delay":
		p.Delay(time.Duration(s.N) * 5 * time.Millisecond)
		sleep(s.For)
		p.Delay(0)
	case "cut":
		p.CutAll()
	case "lost reply":
		reply(mixScript, s.N, redistest.Cut)
	case "lost replies":
		reply(mixScript, 0, redistest.Cut)
	case "lost requests":
		request(mixScript, 0, redistest.Cut)
	case "silent reply":
		reply(mixScript, s.N, redistest.Drop)
		p.CutAll()
	case "lost request":
		request(mixScript, s.N, redistest.Cut)
	case "late request":
		request(mixScript, s.N, redistest.Hold)
		p.Release()
	case "late reply":
		reply(mixScript, s.N, redistest.Hold)
		p.Release()
	case "lost hand-off":
		request(mixHandOff, 1, redistest.Cut)
	case "lost hand-off reply":
		reply(mixHandOff, 1, redistest.Cut)
	case "late hand-off":
		request(mixHandOff, 1, redistest.Hold)
		p.Release()
	case "late hand-off reply":
		reply(mixHandOff, 1, redistest.Hold)
		p.Release()
	case "lost grant":
		reply(isGrant, 1, redistest.Drop)
	case "cut grant":
		reply(isGrant, s.N%3, redistest.Cut)
	case "late grant":
		reply(isGrant, 1, redistest.Hold)
		p.Release()
	case "lost grants and watches":
		reply(func(cmd []string) bool { return isGrant(cmd) || isWatch(cmd) }, 0, redistest.Drop)
	case "lost message":
		reply(isMessage, 1, redistest.Drop)
	case "held subscribe":
		request(mixSubscribe, 0, redistest.Hold)
		p.Release()
	case "black hole":
		p.BlackHole(true)
		sleep(s.For)
		p.BlackHole(false)
	case "refused":
		p.Refuse(true)
		p.CutAll()
		sleep(s.For)
		p.Refuse(false)
	case "-LOADING":
		request(mixScript, 0, redistest.Fail("LOADING Redis is loading the dataset in memory"))
	case "-BUSY":
		request(mixScript, 0, redistest.Fail("BUSY Redis is busy running a script."))
	case "-READONLY":
		request(mixScript, 0, redistest.Fail("READONLY You can't write against a read only replica."))
	default:
		panic(fmt.Sprintf("no such fault: %s", s.Fault))
	}
}

// strikeServer hits the shared server.
func (n *mixNemesis) strikeServer(s mixStep) {
	n.t.Helper()
	switch s.Fault {
	case "kill clients":
		n.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	case "kill pubsub":
		n.ask("CLIENT", "KILL", "TYPE", "pubsub")
	case "script flush":
		histFor(s.For, 5*time.Millisecond, func() { n.ask("SCRIPT", "FLUSH") })
	case "short stop", "long stop":
		n.server.Pause()
		sleep(s.For)
		n.server.Resume()
	case "crash":
		n.server.Kill()
		sleep(s.For)
		n.server.Restart()
	case "delete":
		redistest.Eventually(n.t, 10*time.Second, func() bool { return n.ask("PING") }, "the server must answer")
		n.delete(n.plan.Unguard[n.number%len(n.plan.Unguard)])
		n.number++
	default:
		panic(fmt.Sprintf("no such fault: %s", s.Fault))
	}
}

// ask reports whether the server answered a command; a broken connection is no failure of the test.
func (n *mixNemesis) ask(cmd ...string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return n.direct.Do(ctx, n.direct.B().Arbitrary(cmd...).Build()).Error() == nil
}
