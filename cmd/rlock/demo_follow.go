package main

import (
	"context"
	"fmt"
	"time"
)

// watch follows the shop for a time.
func (d *demo) watch(ctx context.Context, long time.Duration) error {
	_, err := d.follow(ctx, long, func() bool { return false })
	return err
}

// until follows the shop until something is so.
func (d *demo) until(ctx context.Context, what string, isSo func() bool) error {
	ok, err := d.follow(ctx, d.plan.patience, isSo)
	if err == nil && !ok {
		err = fmt.Errorf("%v have passed, but not: %s", d.plan.patience, what)
	}
	return err
}

func (d *demo) follow(ctx context.Context, long time.Duration, isSo func() bool) (bool, error) {
	end := time.NewTimer(long)
	defer end.Stop()
	for !isSo() {
		select {
		case m := <-d.inbox:
			if err := d.note(m); err != nil {
				return false, err
			}
		case <-d.ticker.C:
			if len(d.record.spans) > 0 {
				d.progress()
			}
		case <-end.C:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	return true, nil
}

// note keeps what a process said.
func (d *demo) note(m message) error {
	if m.ended {
		m.from.ended = true
		if m.err != nil && !m.from.killed {
			return fmt.Errorf("process %s: %w", m.from.Letter, m.err)
		}
		return nil
	}
	switch m.event.Kind {
	case ready:
		m.from.ready = true
	case stuck:
		m.from.stuck = true
	default:
		d.record.add(m.from.Letter, m.event)
	}
	return nil
}

func (d *demo) all(is func(*process) bool) func() bool {
	return func() bool {
		for _, w := range d.processes {
			if !is(w) {
				return false
			}
		}
		return true
	}
}
