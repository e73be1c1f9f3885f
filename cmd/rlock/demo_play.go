package main

import (
	"context"
	"fmt"
	"time"
)

// perform is the play in its acts.
func (d *demo) perform(ctx context.Context) error {
	if err := d.until(ctx, "all processes are ready", d.all(func(w *process) bool { return w.ready })); err != nil {
		return err
	}
	d.record.start = time.Now()
	d.ticker.Reset(time.Second)
	d.say("the shop opens; process ids%s", d.each(func(w *process) int { return w.pid() }))
	if err := d.tellAll(wordGo); err != nil {
		return err
	}
	if err := d.watch(ctx, d.plan.before); err != nil {
		return err
	}
	if d.plan.cheats == 0 {
		if err := d.crash(ctx, d.processes[1]); err != nil {
			return err
		}
		if err := d.watch(ctx, d.plan.after); err != nil {
			return err
		}
	}
	d.say("closing time: everybody finishes what they began")
	if err := d.tellAll(wordStop); err != nil {
		return err
	}
	return d.until(ctx, "all processes have ended", d.all(func(w *process) bool { return w.ended }))
}

// crash kills a process while it holds both locks.
func (d *demo) crash(ctx context.Context, victim *process) error {
	if err := victim.tell(wordCrash); err != nil {
		return err
	}
	if err := d.until(ctx, victim.Letter+" is inside", func() bool { return victim.stuck }); err != nil {
		return err
	}
	d.say("%s hangs inside Charge. It holds %s, two deep, and %s; all wait", victim.Letter, tea, till)
	if err := d.watch(ctx, d.plan.hold); err != nil {
		return err
	}
	death := time.Now()
	victim.killed = true
	if err := victim.cmd.Process.Kill(); err != nil {
		return err
	}
	if err := d.until(ctx, victim.Letter+" is dead", func() bool { return victim.ended }); err != nil {
		return err
	}
	d.record.died(victim.Letter, death)
	d.say("%s is killed (SIGKILL). It can't unlock: its lease runs on in Redis", victim.Letter)
	for _, lock := range []string{tea, till} {
		switch n, err := d.rdb.Do(ctx, d.rdb.B().Exists().Key(d.config.key("lock", lock)).Build()).AsInt64(); {
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("%s was free when its holder had just been killed", lock)
		}
	}
	var next *span
	if err := d.until(ctx, "somebody takes "+tea+" over", func() bool {
		next = d.record.takeover(tea, d.record.deaths[victim.Letter])
		return next != nil
	}); err != nil {
		return err
	}
	d.say("%s is inside: the lease ran out %v after the kill", next.process, round(next.from-d.record.deaths[victim.Letter]))
	return nil
}

// judge checks what happened and says so.
func (d *demo) judge(ctx context.Context) error {
	d.explain()
	counters := make(map[string]int64)
	for _, lock := range []string{tea, till} {
		switch n, err := d.rdb.Do(ctx, d.rdb.B().Exists().Key(d.config.key("lock", lock)).Build()).AsInt64(); {
		case err != nil:
			return err
		case n != 0:
			return fmt.Errorf("%s is still locked", lock)
		}
		n, err := d.rdb.Do(ctx, d.rdb.B().Get().Key(d.config.key("count", lock)).Build()).AsInt64()
		if err != nil {
			return err
		}
		counters[lock] = n
	}
	counters[tea] = stockAtOpening - counters[tea]
	f := d.record.check(counters)
	for i, text := range f.overlaps {
		if i == 3 {
			break
		}
		fmt.Fprintln(d.screen, "overlap ", text)
	}
	if d.plan.cheats > 0 {
		fmt.Fprintf(d.screen, "%d of %d processes left out the lock\n", d.plan.cheats, d.plan.processes)
	}
	if err := f.err(); err != nil {
		return err
	}
	fmt.Fprintf(d.screen, "%s %d sections, 0 overlaps, 0 lost updates, %d crash survived\n",
		d.screen.good("ok:"), f.sections, len(d.record.deaths))
	return nil
}
