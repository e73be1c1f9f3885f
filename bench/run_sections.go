package main

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// runs are the workloads by name.
var runs = map[string]func(*job) (report, error){
	"pair":      runOwnNames,
	"names":     runOwnNames,
	"contended": runOneName,
	"local":     runOneName,
	"handoff":   runHandoff,
	"waiters":   runWaiters,
	"holds":     runHolds,
}

const (
	// warmups is how many pairs are made before the window, by all goroutines together.
	warmups = 400
	// warmupTime is when they end at the latest, if the way is long.
	warmupTime = 500 * time.Millisecond
)

// longSection says that each so many sections let others run while they are inside. Without, a section is
// over in nanoseconds, and two of them would rarely meet on a machine with few cores, however
// broken the lock is.
const longSection = 16

// runOwnNames locks and unlocks, each goroutine a name of its own. Its latency is that of the pair.
func runOwnNames(j *job) (report, error) {
	return j.sections(j.lockName, func(g int) int { return g }, true)
}

// runOneName makes all goroutines of all processes share one lock. Its latency is that of the lock
// call alone: the wait.
func runOneName(j *job) (report, error) {
	return j.sections(func(int) string { return j.name }, func(int) int { return 0 }, false)
}

// sections has each goroutine pass through its section until the window closes, and then once more to
// the end, since a blocked call can not be taken back.
func (j *job) sections(nameOf func(g int) string, slotOf func(g int) int, wholePair bool) (report, error) {
	lease := defaultLease
	if j.holds > 0 {
		lease = holdsLease // they are to be renewed meanwhile
	}
	c, err := j.open(lease)
	if err != nil {
		return report{}, err
	}
	defer c.close()
	if err := j.warmUp(c); err != nil {
		return report{}, err
	}
	held := j.newHolds(c, j.holds)
	if err := held.take(); err != nil {
		return report{}, err
	}

	var (
		wg         sync.WaitGroup
		hist       histogram
		violations atomic.Int64
		sections   atomic.Int64
		perG       = make([]int64, j.goroutines)
		errs       = make([]error, j.goroutines)
		start      = make(chan struct{})
		end        time.Time // written before start is closed
	)
	for g := range j.goroutines {
		lock, s := c.mutex(nameOf(g)), j.witness.slot(slotOf(g))
		wg.Go(func() {
			<-start
			var ops, all, bad int64
			defer func() {
				perG[g] = ops
				sections.Add(all)
				violations.Add(bad)
			}()
			for {
				before := time.Now()
				unlock, err := lock(j.ctx)
				if err != nil {
					errs[g] = fmt.Errorf("lock: %w", err)
					return
				}
				locked := time.Now()
				v, ok := s.enter(j.id(g))
				if !ok {
					bad++
				}
				if all%longSection == 0 {
					runtime.Gosched()
				}
				if !v.leave() {
					bad++
				}
				all++
				if err := unlock(); err != nil {
					errs[g] = fmt.Errorf("unlock: %w", err)
					return
				}
				after := time.Now()
				if wholePair {
					hist.record(after.Sub(before))
				} else {
					hist.record(locked.Sub(before))
				}
				if after.After(end) {
					return
				}
				ops++
			}
		})
	}
	if err := j.begin(); err != nil {
		return report{}, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	end = began.Add(j.duration)
	close(start)
	wg.Wait()
	runtime.ReadMemStats(&after)
	if err := errors.Join(j.end(), errors.Join(errs...), held.giveBack()); err != nil {
		return report{}, err
	}
	all := float64(max(sections.Load(), 1))
	rep := report{
		ElapsedNs: j.duration.Nanoseconds(), Latency: hist.latency(), PerGoroutine: perG,
		Sections: sections.Load(), Violations: violations.Load(),
		AllocsPerOp: float64(after.Mallocs-before.Mallocs) / all,
		BytesPerOp:  float64(after.TotalAlloc-before.TotalAlloc) / all,
	}
	for _, n := range perG {
		rep.Ops += n
	}
	return rep, nil
}

// warmUp opens what the library opens lazily, fills its pools, and makes the server know its scripts. It uses
// names of its own, one a goroutine, so that the libraries which poll do not wait here.
func (j *job) warmUp(c *client) error {
	n := min(j.goroutines, 64)
	errs := make([]error, n)
	var wg sync.WaitGroup
	start := time.Now()
	for g := range n {
		lock := c.mutex("warm:" + j.lockName(g))
		wg.Go(func() {
			for i := range max(warmups/n, 2) {
				if i >= 2 && time.Since(start) > warmupTime {
					return
				}
				unlock, err := lock(j.ctx)
				if err == nil {
					err = unlock()
				}
				if err != nil {
					errs[g] = fmt.Errorf("warm-up: %w", err)
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
