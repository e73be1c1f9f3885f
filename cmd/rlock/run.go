package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// errand is what a command line of "rlock run" asks for.
type errand struct {
	addr     string
	name     string
	argv     []string
	path     string // where the command is
	forever  bool   // no -wait
	wait     time.Duration
	options  []rlock.Option
	watchdog time.Duration
	grace    time.Duration
	busy     int // exit code if the lock was not acquired
}

// parseErrand reports false, with the exit code, if there is nothing to run.
func (p *program) parseErrand(args []string) (e errand, code int, ok bool) {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	var addr string
	var lease time.Duration
	flags.StringVar(&addr, "addr", "", "")
	flags.DurationVar(&e.wait, "wait", 0, "")
	flags.DurationVar(&lease, "lease", 0, "")
	flags.DurationVar(&e.watchdog, "watchdog", 0, "")
	flags.DurationVar(&e.grace, "grace", 10*time.Second, "")
	flags.IntVar(&e.busy, "E", exitNotAcquired, "")
	if code, ok := p.parse(flags, args, usageRun); !ok {
		return e, code, false
	}
	e.forever = true
	leased := false
	flags.Visit(func(f *flag.Flag) {
		e.forever = e.forever && f.Name != "wait"
		leased = leased || f.Name == "lease"
	})
	var err error
	switch rest := flags.Args(); {
	case e.wait < 0 || e.grace < 0:
		err = errors.New("-wait and -grace can't be negative")
	case leased && lease < time.Millisecond:
		err = errors.New("-lease is at least 1ms")
	case e.busy < 0 || e.busy > 255:
		err = errors.New("-E is from 0 to 255")
	case len(rest) < 3 || rest[1] != "--":
		err = errors.New("run needs NAME -- command")
	case rest[0] == "":
		err = errors.New("NAME is empty")
	default:
		e.name, e.argv = rest[0], rest[2:]
	}
	if err != nil {
		return e, p.misuse(err, usageRun), false
	}
	if leased {
		e.options = append(e.options, rlock.WithLease(lease))
	}
	e.addr = p.address(addr)
	return e, 0, true
}

// run takes a lock, runs a command and releases the lock.
func (p *program) run(args []string) int {
	e, code, ok := p.parseErrand(args)
	if !ok {
		return code
	}
	// Before the lock is waited for: a misspelt command should not cost others their time.
	var err error
	if e.path, err = exec.LookPath(e.argv[0]); err != nil {
		return p.fail(startCode(err), err)
	}
	o, err := options(e.addr)
	if err != nil {
		return p.fail(exitUsage, err)
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)

	rdb, err := rueidis.NewClient(o)
	if err != nil {
		return p.fail(exitInternal, err)
	}
	defer rdb.Close()
	client, err := rlock.New(rdb, rlock.Options{WatchdogTimeout: e.watchdog})
	if err != nil {
		return p.fail(exitUsage, err)
	}
	defer client.Close()

	ctx, giveUp := context.WithCancelCause(context.Background())
	defer giveUp(nil)
	held, unlock, err := e.acquire(ctx, giveUp, client, signals)
	var s signalled
	switch {
	case err == nil:
		return p.runHeld(held, e, unlock, signals)
	case errors.As(err, &s):
		return s.exitCode()
	case errors.Is(err, rlock.ErrNotAcquired) && !errors.Is(err, rlock.ErrUnreachable):
		return p.fail(e.busy, err)
	default:
		return p.fail(exitInternal, err)
	}
}

// acquire takes the lock, unless a signal comes first: then it gives up, which ends ctx.
func (e errand) acquire(
	ctx context.Context, giveUp context.CancelCauseFunc, client *rlock.Client, signals <-chan os.Signal,
) (context.Context, rlock.UnlockFunc, error) {
	type result struct {
		held   context.Context
		unlock rlock.UnlockFunc
		err    error
	}
	results := make(chan result, 1)
	go func() { // ends soon after giveUp at the latest
		var r result
		m := client.Mutex(e.name, e.options...)
		if e.forever {
			r.held, r.unlock, r.err = m.Lock(ctx)
		} else {
			r.held, r.unlock, r.err = m.TryLock(ctx, e.wait)
		}
		results <- r
	}()
	select {
	case r := <-results:
		return r.held, r.unlock, r.err
	case s := <-signals:
		giveUp(signalled{s})
		r := <-results
		if r.err == nil {
			return nil, nil, errors.Join(signalled{s}, r.unlock())
		}
		return nil, nil, signalled{s}
	}
}

// runHeld runs the command inside the lock.
func (p *program) runHeld(held context.Context, e errand, unlock rlock.UnlockFunc, signals <-chan os.Signal) int {
	var code int
	child, err := p.start(e.path, e.argv)
	if err != nil {
		code = p.fail(startCode(err), err)
	} else {
		code = child.follow(held.Done(), signals, e.grace, func() {
			fmt.Fprintf(p.err, "rlock: %v: stopping the command\n", trimPrefix(context.Cause(held)))
		})
	}
	switch err := unlock(); {
	case errors.Is(err, rlock.ErrLost):
		// Also if the command ended by itself: somebody else may have been inside with it.
		return p.fail(exitLost, fmt.Errorf("%s: the lock was lost; the command ended with code %d", e.name, code))
	case err != nil: // the command was alone; others only wait a little longer
		fmt.Fprintf(p.err, "rlock: %v: the lock ends with its lease\n", trimPrefix(err))
	}
	return code
}

// startCode is the exit code for a command that can't be started.
func startCode(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return exitNotFound
	}
	return exitCannotRun
}
