package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/go-rlock/rlock/internal/testing/memredis"
	"github.com/go-rlock/rlock/rlock"
)

// inLine are the waiters for permits, of either kind.
type inLine struct {
	tally

	// mu guards the fields below.
	waits map[*permitWait]struct{}
	adds  changes
}

func newInLine(o *oracle) inLine {
	return inLine{tally: newTally(o), waits: make(map[*permitWait]struct{})}
}

// permits is the oracle of a semaphore. Each of its permits is free, somebody has it, or a call for it is in
// progress, or has failed and is being corrected.
type permits struct {
	inLine
	n int64 // all of them, at first

	// mu guards the fields below.
	known    bool    // it has been set
	free     int64   // in the server
	held     int64   // by callers, also by dead ones
	estate   int64   // of these, permits of dead callers: others may give them back
	flying   int64   // that calls in progress take or give
	draining int     // calls in progress that take all free permits
	left     []claim // that calls have failed to take or give: in the end the former have not, and the latter have
}

// claim is a process's possible share.
type claim struct {
	process *process
	n       int64
	given   bool // by a call that was to give it back
	upTo    bool // n is the upper bound, of all free permits
}

// permitWait is an Acquire.
type permitWait struct {
	process *process
	n       int64
	began   time.Time
	fits    time.Time // since when its wants are free; zero: they are not
	call    int       // its number, for permits that expire
	told    bool
}

func (s *permits) said(n news) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked(n)
	before := s.free
	s.known, s.free = n.is, n.value
	if lowers := slices.ContainsFunc(s.adds.unsure(), func(n int64) bool { return n < 0 }); s.free < 0 && s.free < before && !lowers {
		s.violation("%d permits are free", s.free)
	}
	s.weigh()
	s.serve(s.free)
}

// weigh compares the free permits with those taken; mu is held.
func (s *permits) weigh() {
	if !s.known || s.lost {
		return
	}
	least, most := s.adds.bounds()
	if s.free+s.held > s.n+most {
		s.violation("%d permits are free and %d held, of %d", s.free, s.held, s.n+most)
		s.lost = true // reported
	}
	left := int64(0)
	for _, c := range s.left {
		left += c.n
	}
	if missing := s.n + least - s.free - s.held - s.flying - left; missing > 0 && s.draining == 0 {
		s.violation("%d permits are free, %d held, and %d under way, of %d", s.free, s.held, s.flying+left, s.n+least)
		s.lost = true
	}
}

// serve notes which waiters could have their permits; mu is held. Nobody gets any behind a waiter that wants more than there are, unless
// its process is gone.
func (s *inLine) serve(free int64) {
	waits, blocked := false, false
	for v := range s.waits {
		waits = waits || v.n > free
		blocked = blocked || v.n > free && v.process.quiet() > 0 && !v.process.isDead()
	}
	for v := range s.waits {
		since(&v.fits, !blocked && v.n <= free)
	}
	s.blocks = waits && free > 0
}

// lookAtWaits reports waiters asleep although their permits are free; mu is held. longer extends the time allowed.
func (s *inLine) lookAtWaits(free int64, longer time.Duration) {
	for v := range s.waits {
		if v.fits.IsZero() || v.told {
			continue
		}
		d := time.Since(v.fits)
		if bound := s.sleeps(v.process, d); bound > 0 && d > bound+longer {
			v.told = true
			s.violation("p%d waits for %d permits since %v, and %d are free, enough for %v, longer than %v (G4)", v.process.number, v.n,
				s.o.world.since(v.began), free, d, bound+longer)
		}
	}
}

// comes notes that an Acquire is called; mu is held.
func (s *inLine) comes(p *process, n int64) *permitWait {
	v := &permitWait{process: p, n: n, began: time.Now()}
	s.waits[v] = struct{}{}
	s.happens(len(s.waits))
	return v
}

// goes notes that it has returned; mu is held.
func (s *inLine) goes(v *permitWait) {
	delete(s.waits, v)
	s.happens(len(s.waits))
}

// called notes that a call that does not wait begins or ends.
func (s *inLine) called() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.happens(len(s.waits))
}

func (s *permits) forgotten() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = true
}

func (s *permits) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lookAtWaits(s.free, 0)
}

// rest compares the free permits at the end with the reports.
func (s *permits) rest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known || s.lost {
		return
	}
	added, unsure := s.adds.settled(s.isVague)
	for i := range unsure {
		unsure[i] = -unsure[i] // so many fewer are missing if they were added
	}
	missing, drained := s.n+added-s.free, int64(0)
	for _, c := range s.left {
		switch {
		case !s.isVague(c.process):
		case c.upTo:
			drained = max(missing-s.held, 0) // as many as there are
		default:
			unsure = append(unsure, c.n)
		}
	}
	for n := range drained + 1 {
		if isSum(missing-s.held-n, unsure) {
			return
		}
	}
	s.violation("in the end %d permits are missing of %d, and %d are held; what else may be: %v", missing, s.n+added, s.held, unsure)
}

// begins notes that an Acquire is called.
func (s *permits) begins(p *process, n int64) *permitWait {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.comes(p, n)
	s.flying += n
	s.serve(s.free)
	return v
}

// ends notes that it has returned.
func (s *permits) ends(v *permitWait, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.goes(v)
	s.flying -= v.n
	if err == nil {
		s.held += v.n
	} else {
		s.left = append(s.left, claim{process: v.process, n: v.n})
	}
	s.weigh()
	s.serve(s.free)
}

// gives notes that a Release is called.
func (s *permits) gives(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held -= n
	s.flying += n
	s.happens(len(s.waits))
}

// takes notes a call that may take some.
func (s *permits) takes(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flying += n
	s.happens(len(s.waits))
}

// gave notes that it has returned: it has given them, will give them, or was refused and the caller still has them.
func (s *permits) gave(p *process, n int64, failed, refused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flying -= n
	switch {
	case refused:
		s.held += n
	case failed:
		s.left = append(s.left, claim{process: p, n: n, given: true})
	}
	s.happens(len(s.waits))
	s.weigh()
}

// drains notes that a Drain is called.
func (s *permits) drains() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining++
	s.happens(len(s.waits))
}

// drained notes that it has returned. If it failed, the permits it took are given back.
func (s *permits) drained(p *process, n int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining--
	if err == nil {
		s.held += n
	} else {
		_, most := s.adds.bounds()
		s.left = append(s.left, claim{process: p, n: s.n + most, upTo: true})
	}
	s.happens(len(s.waits))
	s.weigh()
}

// dies notes that a process with some permits has died.
func (s *permits) dies(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.estate += n
}

// inherits takes the permits of dead processes.
func (s *permits) inherits() (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, s.estate = s.estate, 0
	return n
}

func (s *permits) isSet() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known
}

func (s *permits) isLost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// usePermits takes some, works, and gives them back. It returns false if the process is over.
func (k *worker) usePermits(outer context.Context, s *permits) bool {
	sem := k.process.locks[0].Semaphore(s.o.name.Text)
	if !s.isSet() {
		s.called()
		ctx, cancel := k.bounded()
		_, err := sem.TrySetPermits(ctx, s.n)
		s.called()
		if err != nil {
			k.check(s.o, "TrySetPermits", err, ctx.Err() != nil)
		}
		cancel()
	}
	if n := s.inherits(); n > 0 {
		k.giveBack(s, sem, n)
	}
	if s.isSet() && k.meddles() {
		switch k.r.IntN(3) {
		case 0:
			k.addPermits(&s.inLine, sem.AddPermits)
		case 1:
			k.borrow(outer, s)
		case 2:
			if !k.drain(outer, s, sem) {
				return false
			}
		}
	}
	n := int64(1)
	if k.chance(0.4) {
		n += k.r.Int64N(s.n)
	}
	began := time.Now()
	ctx, end, wait, latest := k.patience(outer)
	defer end()
	v := s.begins(k.process, n)
	var err error
	if wait >= 0 {
		err = sem.TryAcquire(ctx, n, wait)
	} else {
		err = sem.Acquire(ctx, n)
	}
	s.ends(v, err)
	k.returned(s.o, "Acquire", latest, sem.Name())
	if err != nil {
		k.check(s.o, "Acquire", err, !latest.IsZero() || ctx.Err() != nil)
		return outer.Err() == nil && !errors.Is(err, rlock.ErrClosed)
	}
	s.o.counts(began)
	k.hold(outer)
	k.giveBack(s, sem, n)
	return k.process.ctx.Err() == nil
}

// meddles draws whether to make other calls than Acquire and Release.
func (k *worker) meddles() bool {
	share := k.world().plan.Meddle
	return share > 0 && k.chance(share) // otherwise nothing is drawn, or worlds without meddling would change
}

// addPermits changes the number of all permits to one near the initial number.
func (k *worker) addPermits(s *inLine, add func(context.Context, int64) error) {
	n := 1 + k.r.Int64N(2)
	down := k.chance(0.5)
	s.mu.Lock()
	least, most := s.adds.bounds()
	if least+most > 0 || least+most == 0 && down {
		n = -n
	}
	s.adds.begin(n)
	s.happens(len(s.waits))
	s.mu.Unlock()
	ctx, cancel := k.bounded()
	defer cancel()
	err := add(ctx, n)
	failed := k.mayHave(err) && !errors.Is(err, rlock.ErrClosed)
	s.mu.Lock()
	s.adds.end(k.process, n, failed, err != nil && !failed)
	s.happens(len(s.waits))
	s.mu.Unlock()
	if err != nil {
		k.check(s.o, "AddPermits", err, ctx.Err() != nil)
	}
}

// drain takes all free permits, works, and gives them back. It returns false if the process is over.
func (k *worker) drain(outer context.Context, s *permits, sem *rlock.Semaphore) bool {
	s.drains()
	ctx, cancel := k.bounded()
	defer cancel()
	n, err := sem.Drain(ctx)
	s.drained(k.process, n, err)
	if err != nil {
		k.check(s.o, "Drain", err, ctx.Err() != nil)
		return !errors.Is(err, rlock.ErrClosed)
	}
	if n > 0 {
		k.hold(outer)
		k.giveBack(s, sem, n)
	}
	return true
}

// borrow is a section of Redisson's: its tryAcquire knows of no line, and its release publishes the new number.
func (k *worker) borrow(outer context.Context, s *permits) {
	name, server, taken := s.o.name.Text, k.world().servers[0], false
	run := func(command func(do memredis.Do)) {
		server.redis.Atomic(func(do memredis.Do) {
			command(do)
			server.tell([]string{name}, "", do)
		})
	}
	s.takes(1)
	run(func(do memredis.Do) {
		text, _ := do("get", name).(string)
		if free, err := strconv.Atoi(text); err == nil && free > 0 {
			do("decrby", name, "1")
			taken = true
		}
	})
	if s.gave(k.process, 1, false, taken); !taken {
		return
	}
	k.hold(outer)
	s.gives(1)
	run(func(do memredis.Do) { do("publish", "redisson_sc:{"+name+"}", fmt.Sprint(do("incrby", name, "1"))) })
	s.gave(k.process, 1, false, false)
}

// giveBack calls Release until it has worked, or works in the background.
func (k *worker) giveBack(s *permits, sem *rlock.Semaphore, n int64) {
	for {
		if k.process.isDead() {
			s.dies(n)
			return
		}
		s.gives(n)
		ctx, cancel := k.bounded()
		var err error
		given, what := true, "Release"
		if k.world().plan.Meddle > 0 && k.chance(0.3) {
			what = "ReleaseIfExists"
			given, err = sem.ReleaseIfExists(ctx, n)
		} else {
			err = sem.Release(ctx, n)
		}
		left := ctx.Err() != nil
		cancel()
		failed := k.mayHave(err) || errors.Is(err, rlock.ErrClosed)
		s.gave(k.process, n, failed, !failed && (err != nil || !given))
		if err != nil {
			k.check(s.o, what, err, left)
		} else if !given && !s.isLost() {
			s.violation("p%d: ReleaseIfExists reports that the semaphore was not set", k.process.number)
		}
		if failed || err == nil && given {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}
