package pubsub

import (
	"maps"
	"time"
)

// An unlock that notifies all lets the first to ask have the lock: the process nearest to Redis, usually the previous
// holder. So in each process the first waiter sometimes waits for a moment before it asks, a courtesy ([Hub.Aside]):
//
//   - in the unlocking process, if its unlocks notify all, it had a run of them, and others listen ([Hub.EndingForAll]);
//   - in the unlocking process, if it was the only one who wanted the lock there, and listeners out of line were told, or
//     the first in line, which the server does not count ([Hub.Yield]);
//   - in the first process of Redis's queue, if the lock is free for listeners out of line ('? 0');
//   - in each process, where there is no queue in Redis, after an unlock of this library, if others are likely to be there
//     (presence);
//   - in a process that others come before: those before it in Redis's queue or, where there is none, those who have had
//     the lock less lately. For each of them it waits a part of the moment.
//
// The timer or a message ends the courtesy, so nobody sleeps through an unlock. No courtesy takes more than half of the
// time that the waiter has. The listeners out of line need not want the lock: so the next courtesy towards them comes a
// while later at the earliest (again), unless one of them has come in this one. Vain courtesies towards them cost a
// twelfth of the time at most. Where there is no queue, those before this process who did not come are forgotten until
// they have the lock again.

const (
	// again is the pause before the next courtesy if nobody came in the last.
	again = 250 * time.Millisecond
	// steps is how many processes before this one make it wait for all of Hub.Aside.
	steps = 5
	// outsidersStay is how long outsiders, which are listeners out of line, are taken to listen on after an unlock
	// message to them. The next unlock that would notify them finds out whether they have gone.
	outsidersStay = time.Second
)

// courtesy is what a topic knows of other processes, to decide when they go first. Hub.mu guards it.
type courtesy struct {
	ownUnlock   bool      // this process's unlock, which notifies all, is under way: the next message to all is its own
	ownLibrary  bool      // without a queue in Redis: '00' came, so the next message is of this library's
	notBefore   time.Time // the first waiter asks at once before that; zero: it may step aside now
	outsideTold time.Time // last message to outsiders; zero: none
	outsideCame time.Time // last unlock of an outsider, as far as this process knows
	lead        int32     // how many more turns outsiders had than processes in line
	ahead       int32     // processes before this one in Redis's queue, as far as it knows
	rivals      rivals    // for a lock without a queue in Redis
}

// isDue reports whether the last courtesy, or the beginning of a run, is long enough ago.
func (c *courtesy) isDue() bool { return !time.Now().Before(c.notBefore) }

// begun notes that others go first now. If one of them has just come, the next courtesy is due as soon.
func (c *courtesy) begun() {
	if now := time.Now(); now.Sub(c.outsideCame) >= outsidersStay {
		c.notBefore = now.Add(again)
	}
}

// outsiderCame notes an unlock of a listener out of line: the next courtesy is due at once.
func (c *courtesy) outsiderCame() {
	c.notBefore, c.outsideCame = time.Time{}, time.Now()
	c.lead = min(c.lead+1, steps)
}

// toldOutsiders notes an unlock of a process in line that told listeners out of line.
func (c *courtesy) toldOutsiders() {
	c.ahead, c.lead = max(0, c.ahead-1), max(0, c.lead-1)
	c.outsideTold = time.Now()
	if c.isDue() {
		c.begun()
	}
}

// outsiders reports whether listeners out of line lately got an unlock message.
func (c *courtesy) outsiders() bool {
	return !c.outsideTold.IsZero() && time.Since(c.outsideTold) < outsidersStay
}

// before returns how many processes come before this one. Without a queue in Redis, ahead is 0.
func (c *courtesy) before() int { return max(int(c.ahead), c.rivals.before()) }

// presence is what a Hub knows of listeners out of line where there is no queue in Redis: only their unlocks show that there are any. So it
// looks for them by a courtesy now and then, and more and more seldom if none comes.
type presence struct {
	came time.Time // the last of their unlocks
	vain int       // courtesies since
	next time.Time // the next one may begin then
}

const (
	// stays is how long after their last unlock they are taken to be there.
	stays = time.Minute
	// doublings bounds the pause between two vain courtesies: 8 s.
	doublings = 5
)

// seen notes an unlock of one of them.
func (p *presence) seen(now time.Time) { *p = presence{came: now} }

// isLikely reports whether a courtesy towards them is due, for the unlock of now.
func (p *presence) isLikely(now time.Time) bool {
	if !p.came.IsZero() && now.Sub(p.came) < stays {
		return true
	}
	if now.Before(p.next) {
		return false
	}
	p.next = now.Add(again << p.vain)
	p.vain = min(p.vain+1, doublings)
	return true
}

// yields are the locks that this process has lately left to listeners out of line, with or without a topic.
type yields struct {
	of   map[Queue]yield
	most int // before those that are over are forgotten
}

type yield struct {
	until time.Time // who comes next here asks then
	again time.Time // the next one may begin then
}

// begin makes who comes next here let others ask first, for d, unless the last time was a moment ago.
func (y *yields) begin(q Queue, d time.Duration) {
	now := time.Now()
	if now.Before(y.of[q].again) {
		return
	}
	if len(y.of) >= y.most {
		maps.DeleteFunc(y.of, func(_ Queue, over yield) bool { return !now.Before(over.again) })
		y.most = max(64, 2*len(y.of))
	}
	if y.of == nil {
		y.of = make(map[Queue]yield)
	}
	y.of[q] = yield{now.Add(d), now.Add(again)}
}

// left returns how long the next waiter of q, which nobody else waits for here, lets others ask first.
func (y *yields) left(q Queue) time.Duration { return max(0, time.Until(y.of[q].until)) }
