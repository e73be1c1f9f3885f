package pubsub

import "time"

// An unlock that notifies all lets the first to ask have the lock: the process nearest to Redis, usually the previous
// holder. So in each process the first waiter sometimes waits for a moment before it asks, a courtesy ([Hub.Aside]):
//
//   - in the unlocking process, if its unlocks notify all, it had a run of them, and others listen ([Hub.GiveWay]);
//   - in the unlocking process, if it was the only one who wanted the lock there, and listeners out of line were told
//     ([Hub.Yield]);
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
