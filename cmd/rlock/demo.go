package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/rueidis"
)

// plan says how long what takes.
type plan struct {
	watchdog  time.Duration
	processes int
	cheats    int           // so many leave out the lock, and nobody is killed
	before    time.Duration // normal work
	hold      time.Duration // how long the victim stays inside before it is killed
	after     time.Duration // normal work after the takeover
	patience  time.Duration // for what should take no time
}

func newPlan(cheats int) plan {
	p := plan{
		watchdog: 2 * time.Second, processes: 4, cheats: cheats,
		before: 3500 * time.Millisecond, hold: time.Second, after: 3 * time.Second, patience: 10 * time.Second,
	}
	if cheats > 0 {
		p.before = 2 * time.Second
	}
	return p
}

// demo is a run of the shop.
type demo struct {
	program
	plan      plan
	screen    screen
	server    *server
	config    workerConfig
	rdb       rueidis.Client
	processes []*process
	record    *record
	inbox     chan message
	ticker    *time.Ticker
}

func (p *program) demo(args []string) int {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	cheats := flags.Int("cheats", 0, "")
	if code, ok := p.parse(flags, args, usageDemo); !ok {
		return code
	}
	d := &demo{program: *p, plan: newPlan(*cheats), screen: p.screen(), inbox: make(chan message, 1024)}
	switch {
	case flags.NArg() > 0:
		return p.misuse(errors.New("demo takes no arguments"), usageDemo)
	case *cheats < 0 || *cheats > d.plan.processes:
		return p.misuse(fmt.Errorf("-cheats is from 0 to %d", d.plan.processes), usageDemo)
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
	default:
		fmt.Fprintln(d.screen, d.screen.bad("FAILED:"), trimPrefix(err))
		return exitFailed
	}
}

// interruptible returns a context that a signal ends, and becomes its cause.
func interruptible() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() { // ends with ctx
		select {
		case s := <-signals:
			cancel(signalled{s})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// run shows everything, and leaves nothing behind.
func (d *demo) run(ctx context.Context) (err error) {
	if d.server, err = d.findServer(ctx); err != nil {
		return err
	}
	defer d.server.stop()
	d.config = workerConfig{
		Addr: d.server.addr, Embedded: d.server.embedded, Watchdog: d.plan.watchdog,
		Prefix: "rlock-demo:" + rand.Text()[:8],
	}
	if d.rdb, err = d.config.connect(); err != nil {
		return err
	}
	defer d.rdb.Close()
	defer d.removeKeys()
	if err := d.set(ctx, tea, stockAtOpening); err != nil {
		return err
	}
	if err := d.set(ctx, till, 0); err != nil {
		return err
	}
	d.ticker = time.NewTicker(time.Second)
	defer d.ticker.Stop()
	d.record = newRecord(time.Now())
	d.introduce()

	quit := make(chan struct{})
	defer d.endProcesses(quit)
	for i := range d.plan.processes {
		config := d.config
		config.Letter = string(rune('A' + i))
		config.Cheats = i >= d.plan.processes-d.plan.cheats
		w, err := startProcess(d.self, config, d.inbox, quit)
		if w != nil {
			d.processes = append(d.processes, w)
		}
		if err != nil {
			return err
		}
	}
	if err := d.perform(ctx); err != nil {
		return err
	}
	return d.judge(ctx)
}

// perform is the play in its acts.
func (d *demo) perform(ctx context.Context) error {
	if err := d.until(ctx, "all processes are ready", d.all(func(w *process) bool { return w.ready })); err != nil {
		return err
	}
	d.record.start = time.Now()
	d.ticker.Reset(time.Second)
	pids := ""
	for _, w := range d.processes {
		pids += fmt.Sprintf("  %s %d", w.Letter, w.pid())
	}
	d.say("the shop opens; process ids%s", pids)
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
	if err := f.err(); err != nil {
		if d.plan.cheats > 0 {
			return fmt.Errorf("%w (%d left out the lock)", err, d.plan.cheats)
		}
		return err
	}
	fmt.Fprintln(d.screen, d.screen.good("ok:"), f.sections, "sections, 0 overlaps, 0 lost updates,",
		len(d.record.deaths), "crash survived")
	return nil
}

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

func (d *demo) tellAll(word string) error {
	for _, w := range d.processes {
		if w.killed {
			continue
		}
		if err := w.tell(word); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) letters() []string {
	letters := make([]string, len(d.processes))
	for i, w := range d.processes {
		letters[i] = w.Letter
	}
	return letters
}

// endProcesses ends what still runs.
func (d *demo) endProcesses(quit chan struct{}) {
	close(quit)
	for _, w := range d.processes {
		_ = w.cmd.Process.Kill()
		<-w.reaped
	}
}

func (d *demo) set(ctx context.Context, what string, n int64) error {
	cmd := d.rdb.B().Set().Key(d.config.key("count", what)).Value(fmt.Sprint(n)).Build()
	return d.rdb.Do(ctx, cmd).Error()
}

// removeKeys leaves the server as it was, also after an interruption.
func (d *demo) removeKeys() {
	ctx, cancel := context.WithTimeout(context.Background(), d.plan.patience)
	defer cancel()
	for _, kind := range []string{"lock", "count", "inside"} {
		for _, what := range []string{tea, till} {
			_ = d.rdb.Do(ctx, d.rdb.B().Del().Key(d.config.key(kind, what)).Build()).Error()
		}
	}
}
