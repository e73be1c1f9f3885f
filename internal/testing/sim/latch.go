package sim

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// latch is the oracle of a count-down latch. A round lasts from when it is set until it has no count any more.
type latch struct {
	tally
	most int64 // its highest count; a latch of many is never deleted, nor counted down to its end

	// mu guards the fields below.
	is     bool // it has a count, in the server
	count  int64
	gone   time.Time // when it last had one
	open   time.Time // since when it is open; zero: it is not
	shut   time.Time // when it was last open
	round  int
	set    int64 // its count at the beginning of the round
	may    int64 // CountDowns that may have counted since then
	sure   int64 // CountDowns that surely have
	flying int64 // CountDowns in progress
	later  []laterDown
	began  []latchSet  // rounds that no call has reported
	sets   []*latchSet // calls in progress
	failed []*process  // whose TrySetCounts were not answered
	ends   []time.Time // until when a Delete may be in progress
	waits  map[*latchWait]struct{}
}

// laterDown is a CountDown that continues in the background.
type laterDown struct {
	process *process
	round   int
	at      time.Time
}

// latchSet is a TrySetCount, or its effect.
type latchSet struct {
	client string
	n      int64
	at     time.Time
}

// latchWait is an Await.
type latchWait struct {
	process *process
	began   time.Time
	due     time.Time // when the latch was open while it waited; zero: it was not
	told    bool
}

// forAWhile is how long an unanswered call may be in progress.
const forAWhile = 3 * time.Minute

func (l *latch) said(n news) {
	l.mu.Lock()
	defer l.mu.Unlock()
	count, is := n.value, n.is
	l.asked(n)
	switch {
	case is && !l.is:
		l.begin(n.client, count)
	case !is && l.is:
		l.gone = time.Now()
		deleted := slices.ContainsFunc(l.ends, func(until time.Time) bool { return until.After(time.Now()) })
		if l.may < l.set && !l.lost && !deleted {
			l.violation("the latch is open, and was counted down %d times at most, from %d", l.may, l.set)
		}
	case count > l.count && is:
		l.violation("the count is %d after %d", count, l.count)
	}
	l.is, l.count = is, count
	l.weigh()
	switch open := !is || count <= 0; {
	case open && l.open.IsZero():
		l.open = time.Now()
		for v := range l.waits {
			if v.due.IsZero() && time.Since(v.began) > l.o.world.reach() {
				v.due = l.open
			}
		}
	case !open && !l.open.IsZero():
		l.open, l.shut = time.Time{}, time.Now()
	}
}

// begin notes that the latch was set; mu is held.
func (l *latch) begin(client string, count int64) {
	l.round++
	l.set, l.sure, l.may = count, 0, l.flying
	for _, d := range l.later {
		if time.Since(d.at) < forAWhile {
			l.may++
		}
	}
	l.began = append(l.began, latchSet{client, count, time.Now()})
	if !l.lost && len(l.failed) == 0 && !slices.ContainsFunc(l.sets, func(s *latchSet) bool { return s.client == client && s.n == count }) {
		l.violation("the latch was set to %d, and nobody has called for that", count)
	}
}

// weigh compares the count with the CountDowns; mu is held.
func (l *latch) weigh() {
	if l.is && !l.lost && (l.count < l.set-l.may || l.count > l.set-l.sure) {
		l.violation("the count is %d of %d, after %d to %d CountDowns", l.count, l.set, l.sure, l.may)
		l.lost = true // reported
	}
}

func (l *latch) forgotten() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
}

func (l *latch) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for v := range l.waits {
		due := v.due
		if due.IsZero() && !l.open.IsZero() {
			due = v.began
			if l.open.After(due) {
				due = l.open
			}
		}
		if due.IsZero() || v.told {
			continue
		}
		d := time.Since(due)
		bound := l.sleeps(v.process, d)
		if bound > 0 && l.lost {
			bound += lookAgain // somebody may have deleted the key by hand
		}
		if bound > 0 && d > bound {
			v.told = true
			l.violation("p%d waits since %v, and the latch was open %v ago, longer than %v (G4)", v.process.number, l.o.world.since(v.began), d, bound)
		}
	}
}

// rest compares the count at the end with the reports.
func (l *latch) rest() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return
	}
	sure := l.sure
	for _, d := range l.later {
		if d.round == l.round && !l.isVague(d.process) {
			sure++
		}
	}
	if l.is && l.count > l.set-sure {
		l.violation("in the end the count is %d of %d, after %d CountDowns", l.count, l.set, sure)
	}
	if len(l.began) > len(l.failed) {
		l.violation("the latch was set %d times more than reported, and %d calls have failed", len(l.began), len(l.failed))
	}
}

// useLatch makes one call to a latch. It returns false if the process is over.
func (k *worker) useLatch(outer context.Context, l *latch) bool {
	c := k.process.locks[0].CountDownLatch(l.o.name.Text)
	many := l.most > 100
	began := time.Now()
	var err error
	switch x := k.r.Float64(); {
	case x < 0.25 || many && x < 0.3:
		err = k.trySetCount(c, l, many)
	case x < 0.3:
		err = k.deleteLatch(c, l)
	case x < 0.65:
		err = k.countDown(c, l)
	default:
		err = k.await(outer, c, l)
	}
	if err == nil {
		l.o.counts(began)
	}
	return k.process.ctx.Err() == nil && !errors.Is(err, rlock.ErrClosed)
}

func (k *worker) trySetCount(c *rlock.CountDownLatch, l *latch, many bool) error {
	s := &latchSet{k.process.locks[0].ID(), l.most, time.Now()}
	if !many {
		s.n = 1 + k.r.Int64N(l.most)
	}
	l.mu.Lock()
	l.sets = append(l.sets, s)
	l.happens(len(l.waits))
	l.mu.Unlock()
	ctx, cancel := k.bounded()
	defer cancel()
	set, err := c.TrySetCount(ctx, s.n)
	if err != nil {
		k.check(l.o, "TrySetCount", err, ctx.Err() != nil)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.happens(len(l.waits))
	l.sets = slices.DeleteFunc(l.sets, func(other *latchSet) bool { return other == s })
	at := len(l.began) - 1 // a process makes one call for a latch at a time, so this is its last one
	for at >= 0 && (l.began[at].client != s.client || l.began[at].n != s.n || l.began[at].at.Before(s.at)) {
		at--
	}
	switch {
	case err != nil:
		l.failed = append(l.failed, k.process) // no call reports its effect
	case set && at < 0 && !l.lost:
		l.violation("p%d: TrySetCount of %d reports that it has set the latch, but has not", k.process.number, s.n)
	case set && at >= 0:
		l.began = slices.Delete(l.began, at, at+1)
	case !set && !l.is && l.gone.Before(s.at) && !l.lost:
		l.violation("p%d: TrySetCount reports false, although there was no count", k.process.number)
	}
	return err
}

func (k *worker) countDown(c *rlock.CountDownLatch, l *latch) error {
	l.mu.Lock()
	l.flying++
	l.may++
	round := l.round
	if !l.is {
		round = -1
	}
	l.happens(len(l.waits))
	l.mu.Unlock()
	ctx, cancel := k.bounded()
	defer cancel()
	err := c.CountDown(ctx)
	if err != nil {
		k.check(l.o, "CountDown", err, ctx.Err() != nil)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.happens(len(l.waits))
	l.flying--
	switch {
	case err == nil && round == l.round:
		l.sure++
		l.weigh()
	case k.mayHave(err) || errors.Is(err, rlock.ErrClosed):
		d := laterDown{k.process, round, time.Now()}
		if errors.Is(err, rlock.ErrClosed) {
			d.round = -1 // it may not have been sent
		}
		l.later = append(l.later, d)
	}
	return err
}

func (k *worker) deleteLatch(c *rlock.CountDownLatch, l *latch) error {
	began := time.Now()
	l.mu.Lock()
	at := len(l.ends)
	l.ends = append(l.ends, began.Add(24*time.Hour))
	l.happens(len(l.waits))
	l.mu.Unlock()
	ctx, cancel := k.bounded()
	defer cancel()
	deleted, err := c.Delete(ctx)
	if err != nil {
		k.check(l.o, "Delete", err, ctx.Err() != nil)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.happens(len(l.waits))
	l.ends[at] = time.Now()
	switch {
	case err != nil:
		l.ends[at] = time.Now().Add(forAWhile)
	case deleted && l.gone.Before(began):
		l.violation("p%d: Delete reports that it has deleted the latch, but has not", k.process.number)
	case !deleted && l.is && l.shut.Before(began) && !l.lost:
		l.violation("p%d: Delete reports false, although there was a count", k.process.number)
	}
	return err
}

func (k *worker) await(outer context.Context, c *rlock.CountDownLatch, l *latch) error {
	ctx, end, wait, latest := k.patience(outer)
	defer end()
	v := &latchWait{process: k.process, began: time.Now()}
	l.mu.Lock()
	l.waits[v] = struct{}{}
	l.happens(len(l.waits))
	l.mu.Unlock()
	var err error
	if wait >= 0 {
		err = c.TryAwait(ctx, wait)
	} else {
		err = c.Await(ctx)
	}
	k.returned(l.o, "Await", latest, c.Name())
	l.mu.Lock()
	delete(l.waits, v)
	l.happens(len(l.waits))
	if err == nil && l.open.IsZero() && l.shut.Before(v.began) {
		l.violation("p%d: Await returned, although the latch was closed throughout", k.process.number)
	}
	l.mu.Unlock()
	if err != nil {
		k.check(l.o, "Await", err, !latest.IsZero() || ctx.Err() != nil)
		return err
	}
	return nil
}
