package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"sync"
	"time"
)

const (
	demoProcesses = 4
	demoWatchdog  = 2 * time.Second
	demoPatience  = 10 * time.Second // for steps that should take no time
)

// demo is a run of the shop.
type demo struct {
	program
	shop      // without clerks
	screen    screen
	cheats    int           // number of processes that skip the lock; with any, none is killed
	before    time.Duration // normal work, before anything happens
	processes []*process
	inbox     chan message   // from the processes
	listeners sync.WaitGroup // how the server was found
	ticker    *time.Ticker   // for lines of progress
	record    *record
}

func (p *program) demo(args []string) int {
	d := &demo{program: *p, screen: p.screen(), before: 3500 * time.Millisecond, inbox: make(chan message, 1024)}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.IntVar(&d.cheats, "cheats", 0, "")
	if code, ok := p.parse(flags, args); !ok {
		return code
	}
	switch {
	case flags.NArg() > 0:
		return p.misuse(errors.New("demo takes no arguments"), "demo")
	case d.cheats < 0 || d.cheats > demoProcesses:
		return p.misuse(fmt.Errorf("-cheats must be from 0 to %d", demoProcesses), "demo")
	case d.cheats > 0:
		d.before = 2 * time.Second
	}
	ctx, stop := interruptible()
	defer stop()
	err := d.run(ctx)
	var s signalled
	switch {
	case err == nil:
		return 0
	case errors.As(context.Cause(ctx), &s):
		fmt.Fprintln(p.err, "rlock: demo ended by signal:", s)
		return s.exitCode()
	}
	fmt.Fprintln(d.screen, d.screen.bad("FAILED:"), trimPrefix(err))
	return exitFailed
}

// run plays the whole demo and removes its keys.
func (d *demo) run(ctx context.Context) (err error) {
	d.Prefix, d.Watchdog = "rlock-demo:"+rand.Text()[:8], demoWatchdog
	about, stop, err := d.findServer(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if d.rdb, err = d.workerConfig.connect(); err != nil {
		return err
	}
	defer d.rdb.Close()
	defer d.removeKeys()
	d.introduce(about)
	d.record = &record{start: time.Now()}
	d.ticker = time.NewTicker(time.Second)
	defer d.ticker.Stop()
	defer d.endProcesses()
	for i := range demoProcesses {
		config := d.workerConfig
		config.Letter, config.Cheats = string(rune('A'+i)), i >= demoProcesses-d.cheats
		if err := d.startProcess(config); err != nil {
			return err
		}
	}
	d.say("the shop opens; process ids%s", d.each(func(p *process) int { return p.cmd.Process.Pid }))
	if err := d.follow(ctx, d.before, "", nil); err != nil {
		return err
	}
	if d.cheats == 0 {
		if err := d.crash(ctx, d.processes[1]); err != nil {
			return err
		}
		if err := d.follow(ctx, 3*time.Second, "", nil); err != nil {
			return err
		}
	}
	d.say("closing time: everybody finishes what they began")
	for _, p := range d.processes {
		_ = p.in.Close()
	}
	for _, p := range d.processes {
		if err := d.follow(ctx, demoPatience, p.Letter+" has ended", func() bool { return p.ended }); err != nil {
			return err
		}
	}
	d.explain()
	return d.judge(ctx)
}

// crash kills a process while it holds both locks.
func (d *demo) crash(ctx context.Context, victim *process) error {
	if _, err := fmt.Fprintln(victim.in, "crash"); err != nil {
		return err
	}
	if err := d.follow(ctx, demoPatience, victim.Letter+" is inside", func() bool { return d.record.isStuck(victim.Letter) }); err != nil {
		return err
	}
	d.say("%s hangs inside Charge. It holds %s, two deep, and %s; all wait", victim.Letter, tea, till)
	if err := d.follow(ctx, time.Second, "", nil); err != nil {
		return err
	}
	death := time.Now()
	victim.kill()
	if err := d.follow(ctx, demoPatience, victim.Letter+" is dead", func() bool { return victim.ended }); err != nil {
		return err
	}
	d.record.died(victim.Letter, death)
	d.say("%s is killed (SIGKILL). It can't unlock: its lease runs on in Redis", victim.Letter)
	if err := d.checkLocks(ctx, true); err != nil {
		return err
	}
	var next *span
	err := d.follow(ctx, demoPatience, "somebody takes "+tea+" over", func() bool {
		next = d.record.takeover()
		return next != nil
	})
	if err == nil {
		d.say("%s is inside: the lease ran out %v after the kill", next.Process, round(next.From.Sub(death)))
	}
	return err
}

// checkLocks checks in Redis that the locks are held, or free, as expected.
func (d *demo) checkLocks(ctx context.Context, held bool) error {
	for _, lock := range []string{tea, till} {
		n, err := d.rdb.Do(ctx, d.rdb.B().Exists().Key(d.key("lock", lock)).Build()).AsInt64()
		if err == nil && (n > 0) != held {
			err = fmt.Errorf("%s is held: %v, and should be: %v", lock, n > 0, held)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// judge checks the record and prints the verdict.
func (d *demo) judge(ctx context.Context) error {
	if err := d.checkLocks(ctx, false); err != nil {
		return err
	}
	counters := make(map[string]int)
	for _, what := range []string{tea, till} {
		n, err := d.count(ctx, what)
		if err != nil {
			return err
		}
		counters[what] = n
	}
	overlaps, err := d.record.check(counters)
	for _, text := range overlaps[:min(3, len(overlaps))] {
		fmt.Fprintln(d.screen, "overlap ", text)
	}
	if d.cheats > 0 {
		fmt.Fprintf(d.screen, "%d of %d processes left out the lock\n", d.cheats, demoProcesses)
	}
	if err == nil {
		fmt.Fprintf(d.screen, "%s %d sections, 0 overlaps, 0 lost updates, %d crash survived\n",
			d.screen.good("ok:"), len(d.record.sections(tea))+len(d.record.sections(till)), min(1, len(d.record.victim)))
	}
	return err
}

// removeKeys removes the demo's keys, also after an interruption.
func (d *demo) removeKeys() {
	ctx, cancel := context.WithTimeout(context.Background(), demoPatience)
	defer cancel()
	for _, kind := range []string{"lock", "count", "inside"} {
		for _, what := range []string{tea, till} {
			_ = d.rdb.Do(ctx, d.rdb.B().Del().Key(d.key(kind, what)).Build()).Error()
		}
	}
}
