package main

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"
)

// holdsLease is short, to include enough renewals: once per second for rlock and Redisson.
const holdsLease = 3 * time.Second

// holders is the number of goroutines that take and release the holds.
const holders = 64

// runHolds takes many locks and keeps them, to measure the cost of holding and renewing. Its ops are the holds; its time is the window.
func runHolds(j *job) (report, error) {
	lease := cmp.Or(j.lease, holdsLease)
	c, err := j.open(lease)
	if err != nil {
		return report{}, err
	}
	defer c.close()
	if err := j.warmUp(plain, c); err != nil {
		return report{}, err
	}
	h := j.newHolds(c, j.goroutines)
	before := measure()
	if err := h.take(); err != nil {
		return report{}, err
	}
	<-time.After(lease / 3) // renewals are in flight
	rep := report{Extra: measure().perUnit(before, j.goroutines)}
	if err := j.begin(); err != nil {
		return report{}, err
	}
	start, cpu := time.Now(), cpuTime()
	if err := j.quiet(); err != nil {
		return report{}, err
	}
	rep.Extra["cpu_ns"] = float64(cpuTime()-cpu) * j.duration.Seconds() / time.Since(start).Seconds()
	if err := j.end(); err != nil {
		return report{}, err
	}
	rep.Ops, rep.ElapsedNs = int64(j.goroutines), j.duration.Nanoseconds()
	// A hold lost meanwhile shows at its unlock, if the library reports it.
	return rep, h.giveBack()
}

// cpuTime returns the CPU time used by the process so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// holds are many locks of one client. The harness's own memory for them is allocated before they are taken.
type holds struct {
	job    *job
	locks  []lockFunc
	unlock []func() error
}

func (j *job) newHolds(c *client, n int) *holds {
	h := &holds{job: j, locks: make([]lockFunc, n), unlock: make([]func() error, n)}
	for i := range h.locks {
		h.locks[i] = c.mutex(fmt.Sprintf("held:%s:%d", j.name, i))
	}
	return h
}

// each calls f for all i below n on a few goroutines.
func (h *holds) each(f func(i int) error) error {
	errs := make([]error, holders)
	var wg sync.WaitGroup
	for g := range holders {
		wg.Go(func() {
			for i := g; i < len(h.locks); i += holders {
				if err := f(i); err != nil {
					errs[g] = fmt.Errorf("hold %d: %w", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (h *holds) take() error {
	return h.each(func(i int) (err error) {
		h.unlock[i], err = h.locks[i](h.job.ctx)
		return err
	})
}

func (h *holds) giveBack() error {
	return h.each(func(i int) error { return h.unlock[i]() })
}
