package main

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// latchPoll is the workers' polling interval on shared memory: for a set latch, and for waiters that are through. The latter is measured,
// so it does not use Go's timers, which may be a millisecond late.
const latchPoll = 50 * time.Microsecond

// noMore stays negative after any addition.
const noMore = math.MinInt64 / 2

// latchCrew are the waiters of one process.
type latchCrew struct {
	j       *job
	s       *slot
	latches []latch // each waiter's client

	passed     atomic.Int64
	violations atomic.Int64
}

// runLatch makes the first worker set a latch to 1 and count it down repeatedly, while goroutines of all workers wait for it. It measures
// the time from the countdown's call until all are through. Its ops are the rounds, its time is the rounds' total.
//
// The workers synchronize through the witness. The first worker is inside, alone, from the set to the countdown, so a waiter that comes
// through too early is a violation. Waiters that come through leave a trace.
func runLatch(j *job) (report, error) {
	clients, err := j.openAll(defaultLease)
	if err != nil {
		return report{}, err
	}
	c := &latchCrew{j: j, s: j.witness.slot(0), latches: make([]latch, j.clients*j.goroutines)}
	for i := range c.latches {
		c.latches[i] = clients[i%len(clients)].latch(j.name)
	}
	if err := j.warmLatches(clients); err != nil {
		return report{}, err
	}
	c.s.waiting.Add(int64(len(c.latches))) // before any worker starts: so each knows the number of waiters
	if err := j.begin(); err != nil {
		return report{}, err
	}
	all, heard := c.s.waiting.Load(), delivered.Load()
	waited := make(chan error, 1)
	go func() { waited <- c.wait() }() // ends when the first worker announces the end
	var (
		rep report
		led error
	)
	if j.index == 0 {
		led = c.lead(all, &rep)
		c.s.waiting.Store(noMore)
	}
	if err := errors.Join(<-waited, led, j.end()); err != nil {
		return report{}, err
	}
	rep.Sections += c.passed.Load()
	rep.Violations += c.violations.Load()
	rep.Extra = map[string]float64{"delivered": float64(delivered.Load() - heard)}
	if rep.Stuck == 0 { // stuck waiters may block the latch
		for _, c := range clients {
			c.close()
		}
	}
	return rep, nil
}

// lead opens the latch for all until the window closes.
func (c *latchCrew) lead(all int64, rep *report) error {
	own, err := c.j.open(defaultLease)
	if err != nil {
		return err
	}
	defer own.close()
	exact, err := newAlarm()
	if err != nil {
		return err
	}
	defer exact.close()
	var (
		hist histogram
		l    = own.latch(c.j.name)
	)
	for end := time.Now().Add(c.j.duration); time.Now().Before(end); {
		if err := l.set(c.j.ctx); err != nil {
			return fmt.Errorf("set: %w", err)
		}
		v, ok := c.s.enter(c.j.id(len(c.latches)), alone)
		for c.s.waiting.Load() < all*(rep.Ops+2) { // announced before the window, and in each round
			if c.s.waiting.Load() < 0 {
				return errors.New("a waiter has failed")
			}
			<-time.After(latchPoll)
		}
		if !v.leave() || !ok {
			rep.Violations++
		}
		rep.Sections++
		before := time.Now()
		if err := l.countDown(c.j.ctx); err != nil {
			return fmt.Errorf("count down: %w", err)
		}
		for int64(c.s.reads.Load()) < all*(rep.Ops+1) {
			if time.Since(before) > stall {
				rep.Stuck = all*(rep.Ops+1) - int64(c.s.reads.Load())
				return nil
			}
			if err := exact.until(time.Now().Add(latchPoll)); err != nil {
				return err
			}
		}
		took := time.Since(before)
		hist.record(took)
		rep.Ops++
		rep.ElapsedNs += took.Nanoseconds()
	}
	rep.Latency = hist.latency()
	return nil
}

// wait makes all of the process's goroutines wait for each latch until the rounds end. An error ends the rounds of all workers.
func (c *latchCrew) wait() error {
	ended := make(chan error, len(c.latches))
	for round := uint64(0); ; round++ {
		for c.s.owner.Load() == 0 || c.s.count != round {
			if c.s.waiting.Load() < 0 {
				return nil
			}
			<-time.After(latchPoll)
		}
		for i, l := range c.latches {
			go func() { ended <- c.pass(i, l) }() // ends with the process, if the library never returns
		}
		<-time.After(settle(len(c.latches)) / 10)
		c.s.waiting.Add(int64(len(c.latches)))
		for left := len(c.latches); left > 0; {
			select {
			case err := <-ended:
				if err != nil {
					c.s.waiting.Store(noMore)
					return err
				}
				left--
			case <-time.After(stall / 10):
				if c.s.waiting.Load() < 0 { // the first worker has given up on the rest
					return nil
				}
			}
		}
	}
}

// pass waits for the latch once.
func (c *latchCrew) pass(i int, l latch) error {
	if err := l.await(c.j.ctx); err != nil {
		return fmt.Errorf("await: %w", err)
	}
	v, ok := c.s.enter(c.j.id(i), together)
	if !ok {
		c.violations.Add(1)
	}
	c.passed.Add(1)
	v.leave()
	return nil
}

// warmLatches makes each client wait for its own latch, to open its connection for messages.
func (j *job) warmLatches(clients []*client) error {
	errs := make([]error, len(clients))
	var wg sync.WaitGroup
	for i, c := range clients {
		l := c.latch("warm:" + j.lockName(i))
		wg.Go(func() {
			if errs[i] = l.set(j.ctx); errs[i] != nil {
				return
			}
			waited := make(chan error, 1)
			go func() { waited <- l.await(j.ctx) }() // ends by the countdown
			<-time.After(settle(1) / 10)
			errs[i] = l.countDown(j.ctx)
			errs[i] = errors.Join(errs[i], <-waited)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
