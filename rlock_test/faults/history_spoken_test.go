package faults

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Histories of holds that receive messages: asked holds and kept locks.

// spoken draws whether a Lock uses WithAsked, and whether its lock may be kept after the unlock.
func (w *histWorker) spoken() (o []rlock.Option, keeps bool) {
	if !w.plan.Spoken {
		return nil, false
	}
	if w.chance(40) {
		o = append(o, rlock.WithAsked())
	}
	if keeps = w.chance(40); keeps {
		o = append(o, rlock.WithLinger(time.Millisecond+w.duration(w.plan.Watchdog).Truncate(time.Millisecond)))
	}
	return o, keeps
}

// isAsked reports whether an asked section has a waiter, and counts it.
func (w *histWorker) isAsked(h *histHold) bool {
	select {
	case <-rlock.Asked(h.ctx):
		w.count(func(t *histTally) { t.Asked++ })
		return true
	default: // no waiter, or a Lock without WithAsked
		return false
	}
}

// isEar reports whether a channel is a Client's ear.
func isEar(channel string) bool { return strings.HasPrefix(channel, "rlock_client:") }

// isSpoken reports whether cmd is a message to a Client's ear.
func isSpoken(cmd []string) bool { return isMessage(cmd) && isEar(cmd[1]) }

// speaks reports whether cmd sends such a message.
func speaks(cmd []string) bool { return cmd[0] == "PUBLISH" && isEar(cmd[1]) }

// spokenFaults are the faults of messages to holders, with the ranges of their durations.
func spokenFaults(watchdog time.Duration) map[string]mixRange {
	const ms = time.Millisecond
	return map[string]mixRange{
		"cut ear":          {200 * ms, 800 * ms},
		"deaf ear":         {200 * ms, watchdog * 3 / 2},
		"late ear":         {100 * ms, watchdog * 3 / 2},
		"doubled ear":      {200 * ms, 800 * ms},
		"lost speech":      {200 * ms, 800 * ms},
		"late speech":      {100 * ms, watchdog * 3 / 2},
		"unknown speech":   {200 * ms, 800 * ms},
		"forbidden speech": {200 * ms, 800 * ms},
	}
}

// strikeSpoken carries out a fault of spokenFaults. It returns false for any other.
func (n *mixNemesis) strikeSpoken(s mixStep, request, reply func(meant func([]string) bool, nth int, a redistest.Action)) bool {
	spoken := func(cmd []string) bool {
		hit := isSpoken(cmd)
		if hit {
			n.spoken.Add(1)
		}
		return hit
	}
	switch s.Fault {
	case "cut ear":
		reply(spoken, 1, redistest.Cut)
	case "deaf ear":
		reply(spoken, 0, redistest.Drop)
	case "late ear":
		reply(spoken, 1, redistest.Hold)
		n.proxies[s.Proxy].Release()
	case "doubled ear":
		var mu sync.Mutex // guards the following
		var said [][]string
		reply(func(cmd []string) bool {
			if spoken(cmd) {
				mu.Lock()
				said = append(said, cmd)
				mu.Unlock()
			}
			return false
		}, 0, redistest.Pass)
		mu.Lock()
		defer mu.Unlock()
		for _, m := range said {
			n.ask("PUBLISH", m[1], m[2])
		}
	case "lost speech":
		request(speaks, 0, redistest.Cut)
	case "late speech":
		request(speaks, 1, redistest.Hold)
		n.proxies[s.Proxy].Release()
	case "unknown speech":
		reply(speaks, 0, redistest.Cut)
	case "forbidden speech":
		request(speaks, 0, redistest.Fail("LOADING Redis is loading the dataset in memory"))
	default:
		return false
	}
	return true
}

// No fault: asked holds, kept locks and tickets are mixed at random. All histories are valid, and the witness counts
// every section. G1, G2, G5, G6, G8, G9.
func TestHistoryOfSpokenTo(t *testing.T) {
	b := newHistoryRun(t, histPlan{
		Names: histNames(t, 8), Workers: 4, Seed: faultsSeed(t), Watchdog: 900 * time.Millisecond,
		Pause: 3 * time.Millisecond, Along: 10, Spoken: true,
	}, 3, 1)
	sleep(8 * time.Second)
	b.goOn(func(t histTally) bool {
		return t.Nested > 0 && t.Lost > 0 && t.Exported > 20 && t.Moved > 5 && t.Asked > 20 && b.kept() > 20
	})
	reports := b.end()
	b.clean()
	b.check(reports)
	require.Zero(t, b.sum(reports).Failed)
}

// Random faults, with those of the ear, under asked holds, kept locks and tickets. G1, G2, G4 to G6, G8, G9.
func TestMixOfFaultsSpokenTo(t *testing.T) {
	const clients, processes = 3, 1
	names := histNames(t, 8)
	n := mixRun(t, histPlan{Names: names, Unguard: names[6:], Workers: 4, Seed: faultsSeed(t), Along: 10, Spoken: true}, clients, processes, 2*mixKindRound)
	b := n.historyRun
	for i := 0; n.spoken.Load() == 0 && i < int(histPatience/time.Second); i++ { // the schedule may have struck no message
		n.strikeNetwork(mixStep{Fault: "cut ear", Proxy: i % (clients + processes), For: time.Second})
	}
	b.goOn(func(t histTally) bool {
		return t.Lost > 0 && t.Exported > 0 && t.Moved > 0 && t.Asked > 0 && b.kept() > 10
	})
	reports := b.end()
	b.clean()
	b.check(reports)
	t.Logf("%d messages to holders struck", n.spoken.Load())
	require.Positive(t, n.spoken.Load())
}
