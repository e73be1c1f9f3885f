package main

import (
	"context"
	"fmt"
	"time"
)

// affine are locks that a process uses in turn, repeatedly and alone.
const affine = 64

// inTurn locks them in rotation. It is for a single goroutine.
func inTurn(c *client, name string) way {
	locks := make([]lockFunc, affine)
	for i := range locks {
		locks[i] = c.mutex(fmt.Sprintf("%s:%d", name, i))
	}
	at := 0
	return way{write: func(ctx context.Context) (func() error, error) {
		at = (at + 1) % len(locks)
		return locks[at](ctx)
	}}
}

// runTurns makes two clients, as two processes, pass a section in turns: neither wants the lock while the other has it.
func runTurns(j *job) (report, error) {
	a, err := j.open(defaultLease)
	if err != nil {
		return report{}, err
	}
	defer a.close()
	b, err := j.open(defaultLease)
	if err != nil {
		return report{}, err
	}
	defer b.close()
	locks := [2]lockFunc{a.mutex(j.name), b.mutex(j.name)}
	var (
		hist histogram
		rep  report
		s    = j.witness.slot(0)
	)
	section := func(i int) error {
		unlock, err := locks[i](j.ctx)
		if err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		v, ok := s.enter(j.id(i), alone)
		if !v.leave() || !ok {
			rep.Violations++
		}
		rep.Sections++
		if err := unlock(); err != nil {
			return fmt.Errorf("unlock: %w", err)
		}
		return nil
	}
	for i := range warmHandoffs * len(locks) {
		if err := section(i % len(locks)); err != nil {
			return report{}, fmt.Errorf("warm-up: %w", err)
		}
	}
	if err := j.begin(); err != nil {
		return report{}, err
	}
	start := time.Now()
	for end := start.Add(j.duration); time.Now().Before(end); rep.Ops++ {
		before := time.Now()
		if err := section(int(rep.Ops) % len(locks)); err != nil {
			return report{}, err
		}
		hist.record(time.Since(before))
	}
	rep.ElapsedNs = time.Since(start).Nanoseconds()
	if err := j.end(); err != nil {
		return report{}, err
	}
	rep.Latency = hist.latency()
	return rep, nil
}
