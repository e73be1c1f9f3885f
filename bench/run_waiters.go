package main

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// footprint is a process's heap and goroutines.
type footprint struct{ heap, stack, goroutines float64 }

// measure collects garbage twice, because objects with finalizers survive the first time.
func measure() footprint {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return footprint{float64(m.HeapAlloc), float64(m.StackInuse), float64(runtime.NumGoroutine())}
}

// perUnit returns the cost of each of n things, if nothing else came between before and f.
func (f footprint) perUnit(before footprint, n int) map[string]float64 {
	return map[string]float64{
		"heap_bytes":  (f.heap - before.heap) / float64(n),
		"stack_bytes": (f.stack - before.stack) / float64(n),
		"goroutines":  (f.goroutines - before.goroutines) / float64(n),
	}
}

// settle is the time for n goroutines to become waiters. Pollers do not report that.
func settle(n int) time.Duration { return 500*time.Millisecond + time.Duration(n)*300*time.Microsecond }

// runWaiters makes another client hold the lock while many goroutines wait, to measure their cost, and the time from the unlock until all
// had the lock. The window contains only waiting. Its ops are the waiters, its time is the time to drain them.
func runWaiters(j *job) (report, error) {
	holder, err := j.open(defaultLease)
	if err != nil {
		return report{}, err
	}
	defer holder.close()
	c, err := j.open(defaultLease)
	if err != nil {
		return report{}, err
	}
	defer c.close()
	if err := j.warmUp(plain, c); err != nil {
		return report{}, err
	}
	if err := j.waitOnce(holder, c); err != nil {
		return report{}, err
	}
	unlock, err := holder.mutex(j.name)(j.ctx)
	if err != nil {
		return report{}, err
	}

	var (
		wg         sync.WaitGroup
		hist       histogram
		violations atomic.Int64
		start      = make(chan struct{})
		released   time.Time // written before unlock
		errs       = make([]error, j.goroutines)
		lock, s    = c.mutex(j.name), j.witness.slot(0)
	)
	held, _ := s.enter(j.id(j.goroutines), alone)
	for g := range j.goroutines {
		wg.Go(func() {
			<-start
			unlock, err := lock(j.ctx)
			if err != nil {
				errs[g] = fmt.Errorf("lock: %w", err)
				return
			}
			hist.record(time.Since(released))
			v, ok := s.enter(j.id(g), alone)
			if !v.leave() || !ok {
				violations.Add(1)
			}
			errs[g] = unlock()
		})
	}
	before := measure()
	close(start)
	<-time.After(settle(j.goroutines))
	rep := report{Extra: measure().perUnit(before, j.goroutines)}
	if err := j.begin(); err != nil {
		return report{}, err
	}
	if err := j.quiet(); err != nil {
		return report{}, err
	}
	if err := j.end(); err != nil {
		return report{}, err
	}
	if !held.leave() {
		violations.Add(1)
	}
	released = time.Now()
	if err := unlock(); err != nil {
		return report{}, fmt.Errorf("unlock: %w", err)
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return report{}, err
	}
	rep.ElapsedNs = time.Since(released).Nanoseconds()
	rep.Ops, rep.Sections = int64(j.goroutines), int64(j.goroutines)+1
	rep.Violations = violations.Load()
	rep.Latency = hist.latency()
	return rep, nil
}

// waitOnce makes c wait for a lock once, to open its connection for messages, which is not part of a waiter's cost.
func (j *job) waitOnce(holder, c *client) error {
	const name = "warm:waited-for"
	unlock, err := holder.mutex(name)(j.ctx)
	if err != nil {
		return err
	}
	waited := make(chan error, 1)
	go func() { // ends when it got the lock
		unlock, err := c.mutex(name)(j.ctx)
		if err == nil {
			err = unlock()
		}
		waited <- err
	}()
	<-time.After(settle(1))
	if err := unlock(); err != nil {
		return err
	}
	return <-waited
}
