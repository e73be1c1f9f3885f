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
	if code, ok := p.parse(flags, args); !ok {
		return code
	}
	d := &demo{program: *p, plan: newPlan(*cheats), screen: p.screen(), inbox: make(chan message, 1024)}
	switch {
	case flags.NArg() > 0:
		return p.misuse(errors.New("demo takes no arguments"), "demo")
	case *cheats < 0 || *cheats > d.plan.processes:
		return p.misuse(fmt.Errorf("-cheats is from 0 to %d", d.plan.processes), "demo")
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
	signal.Notify(signals, heeded(os.Interrupt, syscall.SIGTERM)...)
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
