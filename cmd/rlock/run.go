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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// errand is what a command line of "rlock run" asks for.
type errand struct {
	target   target
	name     string
	argv     []string
	path     string // where the command is
	forever  bool   // no -wait
	wait     time.Duration
	options  []rlock.Option
	kind     func(c *rlock.Client, name string, options ...rlock.Option) *rlock.Mutex
	watchdog time.Duration
	grace    time.Duration
	busy     int // exit code if the lock was not acquired
	skip     bool
	verbose  bool
}

// parseErrand reports false, with the exit code, if there is nothing to run.
func (p *program) parseErrand(args []string) (e errand, code int, ok bool) {
	flags := p.flags("run", &e.target)
	var lease, minHold, maxHold time.Duration
	flags.DurationVar(&e.wait, "wait", 0, "")
	flags.DurationVar(&lease, "lease", 0, "")
	flags.DurationVar(&minHold, "min-hold", 0, "")
	flags.DurationVar(&maxHold, "max-hold", 0, "")
	flags.DurationVar(&e.watchdog, "watchdog", 0, "")
	flags.DurationVar(&e.grace, "grace", 10*time.Second, "")
	flags.IntVar(&e.busy, "E", exitNotAcquired, "")
	flags.BoolVar(&e.skip, "skip", false, "")
	flags.BoolVar(&e.verbose, "v", false, "")
	kinds := map[string]func(*rlock.Client, string, ...rlock.Option) *rlock.Mutex{
		"fenced": (*rlock.Client).FencedMutex,
		"fair":   (*rlock.Client).FairMutex,
		"shared": func(c *rlock.Client, name string, o ...rlock.Option) *rlock.Mutex {
			return c.RWMutex(name, o...).Read()
		},
		"exclusive": func(c *rlock.Client, name string, o ...rlock.Option) *rlock.Mutex {
			return c.RWMutex(name, o...).Write()
		},
	}
	chosen := 0
	for name, kind := range kinds {
		flags.BoolFunc(name, "", func(string) error {
			e.kind = kind
			chosen++
			return nil
		})
	}
	e.kind = (*rlock.Client).Mutex
	if code, ok := p.parse(flags, args); !ok {
		return e, code, false
	}
	given := make(map[string]bool)
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	e.forever = !given["wait"] && !e.skip
	if e.skip && !given["E"] {
		e.busy = 0
	}
	var err error
	switch rest := flags.Args(); {
	case e.wait < 0 || e.grace < 0:
		err = errors.New("-wait and -grace can't be negative")
	case given["lease"] && lease < time.Millisecond, given["min-hold"] && minHold < time.Millisecond, given["max-hold"] && maxHold < time.Millisecond:
		err = errors.New("-lease, -min-hold and -max-hold are at least 1ms")
	case chosen > 1:
		err = errors.New("one of -fenced, -fair, -shared and -exclusive at most")
	case given["min-hold"] && (given["fair"] || given["shared"] || given["exclusive"]):
		err = errors.New("-min-hold is for plain and fenced locks")
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
		return e, p.misuse(err, "run"), false
	}
	if given["lease"] {
		e.options = append(e.options, rlock.WithLease(lease))
	}
	if given["min-hold"] {
		e.options = append(e.options, rlock.WithMinHold(minHold))
	}
	if given["max-hold"] {
		e.options = append(e.options, rlock.WithMaxHold(maxHold))
	}
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
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)

	rdb, code, ok := p.connect(&e.target, true)
	if !ok {
		return code
	}
	defer rdb.Close()
	waits := make(chan string, 1)
	client, err := rlock.New(rdb, rlock.Options{WatchdogTimeout: e.watchdog, Prefix: e.target.prefix, Trace: &rlock.Trace{
		Waiting: func(_ context.Context, i rlock.WaitingInfo) { waits <- i.Holder },
	}})
	if err != nil {
		return p.misuse(err, "run")
	}
	defer client.Close()
	// "rlock show" finds us by it. The name is lost with the connection; nothing depends on it.
	named, cancel := context.WithTimeout(context.Background(), lookInterval)
	_ = rdb.Do(named, rdb.B().ClientSetname().ConnectionName("rlock:"+client.ID()).Build())
	cancel()

	ctx, giveUp := context.WithCancelCause(context.Background())
	defer giveUp(nil)
	held, unlock, err := p.acquire(ctx, giveUp, e, client, signals, waits)
	var s signalled
	switch {
	case err == nil:
		return p.runHeld(held, e, unlock, signals)
	case errors.As(err, &s):
		return s.exitCode()
	case errors.Is(err, rlock.ErrNotAcquired) && !errors.Is(err, rlock.ErrUnreachable):
		if e.skip && !e.verbose {
			return e.busy
		}
		return p.fail(e.busy, err)
	default:
		return p.fail(exitInternal, e.target.at(err))
	}
}

// environment is that of the command: our own, and what it may want to know of its lock.
func (e errand) environment(held context.Context) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "RLOCK_TOKEN=") }) // of an outer run
	env = append(env, "RLOCK_NAME="+e.name, "RLOCK_OWNER="+rlock.Owner(held))
	if token, ok := rlock.FencingToken(held, e.name); ok {
		env = append(env, "RLOCK_TOKEN="+strconv.FormatInt(token, 10))
	}
	return env
}

// acquire takes the lock, unless a signal comes first: then it gives up, which ends ctx. The first holder that is waited for comes from
// waits.
func (p *program) acquire(
	ctx context.Context, giveUp context.CancelCauseFunc, e errand, client *rlock.Client, signals <-chan os.Signal, waits <-chan string,
) (context.Context, rlock.UnlockFunc, error) {
	type result struct {
		held   context.Context
		unlock rlock.UnlockFunc
		err    error
	}
	results := make(chan result, 1)
	m, began := e.kind(client, e.name, e.options...), time.Now()
	go func() { // ends soon after giveUp at the latest
		var r result
		if e.forever {
			r.held, r.unlock, r.err = m.Lock(ctx)
		} else {
			r.held, r.unlock, r.err = m.TryLock(ctx, e.wait)
		}
		results <- r
	}()
	looks := time.NewTicker(lookInterval)
	defer looks.Stop()
	var seen string
	for {
		select {
		case r := <-results:
			if r.err == nil {
				p.tell(e, "acquired after %s as %s", short(time.Since(began)), rlock.Owner(r.held))
			}
			return r.held, r.unlock, r.err
		case s := <-signals:
			giveUp(signalled{s})
			r := <-results
			if r.err == nil {
				return nil, nil, errors.Join(signalled{s}, r.unlock())
			}
			return nil, nil, signalled{s}
		case seen = <-waits:
			p.tell(e, "waiting: held by %s", seen)
		case <-looks.C:
			if !e.verbose || seen == "" {
				continue
			}
			if now := holdersOf(ctx, m); now != "" && now != seen {
				seen = now
				p.tell(e, "waiting: held by %s", seen)
			}
		}
	}
}

// lookInterval is how often -v looks who is waited for, and how long a look may take.
const lookInterval = time.Second

// holdersOf is "" if nobody holds the lock, or that is not known.
func holdersOf(ctx context.Context, m *rlock.Mutex) string {
	ctx, cancel := context.WithTimeout(ctx, lookInterval)
	defer cancel()
	info, _ := m.Info(ctx) // the Lock tells of what is wrong
	var owners []string
	for _, h := range info.Holders {
		owners = append(owners, h.Owner)
	}
	return strings.Join(owners, ", ")
}

// tell says with -v what becomes of the lock.
func (p *program) tell(e errand, format string, args ...any) {
	if e.verbose {
		fmt.Fprintf(p.err, "rlock: %q: %s\n", e.name, fmt.Sprintf(format, args...))
	}
}

// runHeld runs the command inside the lock.
func (p *program) runHeld(held context.Context, e errand, unlock rlock.UnlockFunc, signals <-chan os.Signal) int {
	var code int
	began := time.Now()
	child, err := p.start(e.path, e.argv, e.environment(held))
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
		return p.fail(exitLost, fmt.Errorf("%q: the lock was lost; the command ended with code %d", e.name, code))
	case err != nil: // the command was alone; others only wait a little longer
		fmt.Fprintf(p.err, "rlock: %v: the lock ends with its lease\n", trimPrefix(err))
	default:
		p.tell(e, "released after %s", short(time.Since(began)))
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
