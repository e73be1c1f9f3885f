package faults

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// fairPlace is a client's knowledge of an owner's place in a fair lock's queue. An owner joins the queue once.
type fairPlace struct {
	asked  int64 // when its first call was sent
	placed int64 // when the first reply arrived that confirmed its place
	kept   int64 // when the last call was sent whose reply confirmed it
}

// parseFairScript parses the calls of fair locks' scripts. Their keys are the lock, the queue and its times.
func parseFairScript(names, args []string) (histScript, bool) {
	n := len(names) / 3
	if len(names)%3 != 0 || !strings.HasPrefix(names[1], "redisson_lock_queue:") {
		return histScript{}, false
	}
	c := histScript{fair: true, keys: []histKey{{names[0], args[0]}}}
	switch {
	case n == 1 && len(args) == 7: // owner, lease, to join the queue
		ms, err := strconv.Atoi(args[1])
		c.what, c.first, c.joins, c.lease = "acquire", true, args[2] == "1", time.Duration(ms)*time.Millisecond
		return c, err == nil
	case n == 1 && len(args) == 6: // owner
		c.what, c.ends, c.from = "release", true, c.keys[0]
		return c, true
	case len(args) == 3+2*n: // three common arguments, then owners and channels
		c.what, c.keys = "refresh", nil
		for i := range n {
			c.keys = append(c.keys, histKey{names[3*i], args[3+2*i]})
		}
		return c, true
	}
	return histScript{}, false
}

// asks records an acquire before it is sent. The caller holds the log's mutex.
func (l *histLog) asks(c histScript, sent int64) {
	if p := l.places[c.keys[0]]; c.fair && p.asked == 0 {
		p.asked = sent
		l.places[c.keys[0]] = p
	}
}

// seePlaces records the places that a reply confirms. A grant comes later, so it counts from then, unless a late copy of
// a call may have put the owner in the queue again. The caller holds the log's mutex.
func (l *histLog) seePlaces(c histScript, sent int64, result rueidis.RedisResult) {
	reply, err := result.ToArray()
	if !c.fair || err != nil {
		return
	}
	for i, k := range c.keys {
		at := i
		if c.what == "acquire" {
			at = 2
		}
		if at >= len(reply) {
			continue
		}
		if there, err := reply[at].AsInt64(); err != nil || there < 1 || l.unsure[k] {
			continue
		}
		p := l.places[k]
		if p.placed == 0 {
			p.placed = histNow()
		}
		p.kept = max(p.kept, sent)
		l.places[k], l.queued[k] = p, max(l.queued[k], sent)
	}
}

// placeOf returns the times of an owner's place, after its Lock returned. A granted owner that still held the lock kept
// its place until then. Nothing is known if a late copy of a call may have put the owner in the queue again.
func (l *histLog) placeOf(k histKey, returned int64) (asked, placed, kept int64) {
	trusted := l.trusted(k)
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.places[k]
	switch {
	case l.unsure[k] || p.placed == 0:
		return p.asked, 0, 0
	case l.trust[k] == 0 && returned < trusted:
		p.kept = returned
	}
	return p.asked, p.placed, p.kept
}

// fairOvertaken describes an owner that got a fair lock before an earlier one: the earlier owner's place was known
// before the later owner first asked, and still kept when that one got in. It returns "" if there is no such pair.
func fairOvertaken(entries []histEntry) string {
	byName := make(map[string][]histEntry)
	for _, e := range entries {
		if e.Kind == histLock && e.Asked > 0 {
			byName[e.Name] = append(byName[e.Name], e)
		}
	}
	for name, locks := range byName {
		for _, a := range locks {
			for _, b := range locks {
				if a.Placed > 0 && a.Placed < b.Asked && b.Return < a.Kept {
					return fmt.Sprintf("%s: %s first asked %v after the place of %s was known, and got in %v before that owner left the queue",
						name, b.Owner, time.Duration(b.Asked-a.Placed), a.Owner, time.Duration(a.Kept-b.Return))
				}
			}
		}
	}
	return ""
}

// The checker of the order tells valid orders from invalid ones (G4).
func TestHistoryCheckerSeesOvertaking(t *testing.T) {
	lock := func(owner string, asked, placed, kept, returned int64) histEntry {
		e := histOp(histLock, owner, asked, returned)
		e.Asked, e.Placed, e.Kept = asked, placed, kept
		return e
	}
	first, next := lock("a", 1, 5, 30, 31), lock("b", 6, 8, 50, 51)
	require.Empty(t, fairOvertaken([]histEntry{first, next}))
	require.Empty(t, fairOvertaken([]histEntry{first, lock("b", 4, 8, 15, 20)}), "they asked together")
	require.Empty(t, fairOvertaken([]histEntry{first, histOn("m", lock("b", 6, 8, 15, 20))}), "for another lock")
	require.Empty(t, fairOvertaken([]histEntry{lock("a", 1, 5, 15, 31), lock("b", 6, 8, 15, 20)}), "the first may have lost its place")
	require.Empty(t, fairOvertaken([]histEntry{lock("a", 1, 0, 0, 31), lock("b", 6, 8, 15, 20)}), "the first may have had none")
	require.NotEmpty(t, fairOvertaken([]histEntry{first, lock("b", 6, 8, 15, 20)}))
	require.NotEmpty(t, fairOvertaken([]histEntry{lock("b", 6, 0, 0, 20), first}), "without a place at all")
}

// Fair locks under random faults. All histories are valid, nobody overtakes a waiter whose place was known before, the
// witness counts every section, and nothing is left. G1, G2, G4 to G6, G8, G9.
func TestMixOfFaultsFair(t *testing.T) {
	b := mixRun(t, histPlan{Kind: histFair, Names: histNames(t, 2), Workers: 4, Seed: faultsSeed(t)}, 2, 1, mixKindRound).historyRun
	b.goOn(func(t histTally) bool { return t.Nested > 0 && t.Lost > 0 })
	reports := b.end()
	b.clean()
	b.check(reports)
	placed := 0
	for _, r := range reports {
		for _, e := range r.Entries {
			if e.Placed > 0 {
				placed++
			}
		}
	}
	require.Greater(t, placed, 20, "known places")
	require.Positive(t, b.sum(reports).Granted, "holds begun by a grant, without a command")
}

// The last waiter of a fair lock is repeatedly moved to the front (G4): the checker reports that it overtakes the others.
func TestHistoryRejectsASwappedOrder(t *testing.T) {
	b := newHistoryRun(t, histPlan{
		Kind: histFair, Names: histNames(t, 1), Workers: 5, Seed: faultsSeed(t), Watchdog: 900 * time.Millisecond,
		Pause: 20 * time.Millisecond,
	}, 2, 0)
	queue := "redisson_lock_queue:{" + b.plan.Names[0] + "}"
	rng := rand.New(rand.NewPCG(b.plan.Seed, 0))
	b.until(2*time.Second, func() bool { return fairOvertaken(b.soFar()) != "" }, 10*time.Millisecond, func() {
		if rng.IntN(3) == 0 {
			_ = do(t, b.direct, "LMOVE", queue, queue, "RIGHT", "LEFT").Error() // the queue may be empty
		}
	})
	require.NotEmpty(t, fairOvertaken(histMerge(b.end()...)))
	b.clean()
}
