package main

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"time"
)

// crashSpread is the time over which holders with the library's lease are killed: more than one renewal interval.
const crashSpread = 20 * time.Second

// crashPending is the time before the first kill, for all waiters to start waiting.
const crashPending = 200 * time.Millisecond

// crashTimeout is when waiters are given up. It is longer than the spread and the longest lease together.
const crashTimeout = 100 * time.Second

// runCrash waits for locks whose holders, one process each, are killed one after the other, as by kill -9. Its latency is the time from the
// kill until the waiter has the lock.
func runCrash(j *job) (report, error) {
	c, err := j.open(j.lease)
	if err != nil {
		return report{}, err
	}
	if err := j.warmUp(plain, c); err != nil {
		return report{}, err
	}
	holders := make([]*process, j.goroutines)
	defer func() {
		for _, h := range holders {
			if h != nil {
				h.end()
			}
		}
	}()
	for i := range holders {
		if holders[i], err = j.startHolder(i); err != nil {
			return report{}, err
		}
	}
	for _, h := range holders {
		if err := h.ready(readyTimeout); err != nil {
			return report{}, fmt.Errorf("holder: %w", err)
		}
	}
	if err := j.begin(); err != nil {
		return report{}, err
	}
	var (
		hist   histogram
		rep    = report{Extra: map[string]float64{"least_ns": math.MaxInt64}} // JSON has no infinity
		start  = time.Now()
		spread = cmp.Or(j.lease, crashSpread)
		next   = make(chan crash, len(holders))
	)
	for i, h := range holders {
		at := start.Add(crashPending + spread*time.Duration(i)/time.Duration(len(holders)))
		go func() { next <- j.crash(c, i, h, at) }() // ends with the process, if the library never returns
	}
	timeout := time.After(j.duration)
wait:
	for range holders {
		select {
		case <-timeout:
			rep.Stuck = int64(len(holders)) - rep.Ops
			break wait
		case got := <-next:
			if got.err != nil {
				return report{}, got.err
			}
			rep.Ops++
			rep.Sections++
			rep.Violations += got.violations
			rep.Extra["least_ns"] = min(rep.Extra["least_ns"], float64(got.after))
			hist.record(got.after)
		}
	}
	rep.ElapsedNs, rep.Latency = time.Since(start).Nanoseconds(), hist.latency()
	if rep.Stuck == 0 { // stuck waiters may block the client's close
		c.close()
	}
	return rep, j.end()
}

// crash is the result of a holder's kill.
type crash struct {
	after      time.Duration // until the waiter had the lock
	violations int64
	err        error
}

// crash waits for the i-th lock, and kills its holder at the given time.
func (j *job) crash(c *client, i int, holder *process, at time.Time) crash {
	got := make(chan taken)
	go func() { // ends with the lock call
		unlock, err := c.mutex(j.lockName(i))(j.ctx)
		got <- taken{unlock, time.Now(), err}
	}()
	var result crash
	select {
	case <-time.After(time.Until(at)):
	case t := <-got:
		if t.err == nil {
			t.err = fmt.Errorf("got lock %d, which is held", i)
		}
		return crash{err: t.err}
	}
	killed := time.Now()
	if err := holder.cmd.Process.Kill(); err != nil {
		return crash{err: err}
	}
	t := <-got
	if t.err != nil {
		return crash{err: fmt.Errorf("lock: %w", t.err)}
	}
	result.after = t.at.Sub(killed)
	v, ok := j.witness.slot(i).enter(j.id(i), alone)
	if !v.leave() || !ok {
		result.violations++
	}
	result.err = t.unlock()
	return result
}

// startHolder runs a process that holds the i-th lock until it is killed.
func (j *job) startHolder(i int) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return startProcess([]string{self, "worker", "--lib", j.lib.name, "--workload", "crash-holder", "--addr", j.addr,
		"--name", j.lockName(i), "--lease", j.lease.String(), "--witness", j.witnessPath})
}

// runHolder holds the lock, and reports "ready".
func runHolder(j *job) (report, error) {
	c, err := j.open(j.lease)
	if err != nil {
		return report{}, err
	}
	if _, err := c.mutex(j.name)(j.ctx); err != nil {
		return report{}, err
	}
	return report{}, j.begin() // no signal follows
}
