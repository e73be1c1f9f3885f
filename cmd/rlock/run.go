package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/rlock"
)

// errand is the parsed command line of "rlock run".
type errand struct {
	target   target
	name     string
	argv     []string
	path     string // the command's executable
	forever  bool   // no -wait
	wait     time.Duration
	options  []rlock.Option
	kind     func(c *rlock.Client, name string, options ...rlock.Option) *rlock.Mutex
	watchdog time.Duration
	label    string

	outer     []string // owners of the runs around this one
	killAfter time.Duration
	waitGroup bool

	asked   syscall.Signal // sent to the command when somebody waits for the lock; 0: none
	busy    int            // exit code if the lock was not acquired
	skip    bool
	verbose bool
}

// parseErrand reports false, with the exit code, if there is nothing to run.
func (p *program) parseErrand(args []string) (e errand, code int, ok bool) {
	flags := p.flags("run", &e.target)
	var lease, grace, minHold, maxHold time.Duration
	flags.DurationVar(&e.wait, "wait", 0, "")
	flags.DurationVar(&lease, "lease", 0, "")
	flags.DurationVar(&minHold, "min-hold", 0, "")
	flags.DurationVar(&maxHold, "max-hold", 0, "")
	flags.DurationVar(&e.watchdog, "watchdog", 0, "")
	flags.DurationVar(&grace, "grace", 0, "")
	flags.DurationVar(&e.killAfter, "kill-after", 10*time.Second, "")
	flags.Func("asked", "", func(text string) (err error) {
		e.asked, err = parseSignal(text)
		return err
	})
	flags.StringVar(&e.label, "label", runLabel(), "")
	flags.IntVar(&e.busy, "E", exitNotAcquired, "")
	flags.BoolVar(&e.waitGroup, "wait-group", false, "")
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
	chosen := make(map[string]bool)
	for name, kind := range kinds {
		flags.BoolFunc(name, "", func(string) error {
			e.kind = kind
			chosen[name] = true
			return nil
		})
	}
	e.kind = (*rlock.Client).Mutex
	if code, ok := p.parse(flags, args); !ok {
		return e, code, false
	}
	if flags.NArg() > 0 { // more flags may follow, up to the dashes
		e.name = flags.Arg(0)
		rest := flags.Args()[1:]
		if code, ok := p.parse(flags, rest); !ok {
			return e, code, false
		}
		if n := len(rest) - flags.NArg(); n > 0 && rest[n-1] == "--" {
			e.argv = flags.Args()
		}
	}
	e.outer = strings.Fields(p.getenv(ownersVariable))
	given := make(map[string]bool)
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	e.forever = !given["wait"] && !e.skip
	if e.skip && !given["E"] {
		e.busy = 0
	}
	most := 1
	if chosen["fenced"] && chosen["exclusive"] {
		most = 2
		e.kind = func(c *rlock.Client, name string, o ...rlock.Option) *rlock.Mutex {
			return c.FencedRWMutex(name, o...).Write()
		}
	}
	var err error
	switch {
	case e.wait < 0 || e.killAfter < 0:
		err = errors.New("-wait and -kill-after can't be negative")
	case given["lease"] && lease < time.Millisecond, given["min-hold"] && minHold < time.Millisecond, given["max-hold"] && maxHold < time.Millisecond,
		given["grace"] && grace < time.Millisecond:
		err = errors.New("-lease, -grace, -min-hold and -max-hold must be at least 1ms")
	case len(chosen) > most:
		err = errors.New("use at most one of -fenced, -fair, -shared and -exclusive, or -fenced -exclusive")
	case given["min-hold"] && (given["fair"] || given["shared"] || given["exclusive"]):
		err = errors.New("-min-hold only works with plain and fenced locks")
	case e.busy < 0 || e.busy > 255:
		err = errors.New("-E must be from 0 to 255")
	case len(e.argv) == 0:
		err = errors.New("run needs NAME -- command, with its own flags before the dashes")
	case e.name == "":
		err = errors.New("NAME is empty")
	default:
		err = valid(rlock.Options{WatchdogTimeout: e.watchdog, Prefix: e.target.prefix, Label: e.label})
	}
	if err != nil {
		return e, p.misuse(err, "run"), false
	}
	if given["lease"] {
		e.options = append(e.options, rlock.WithLease(lease))
	}
	if given["grace"] {
		e.options = append(e.options, rlock.WithGrace(grace))
	}
	if given["min-hold"] {
		e.options = append(e.options, rlock.WithMinHold(minHold))
	}
	if given["asked"] {
		e.options = append(e.options, rlock.WithAsked())
	}
	if given["max-hold"] {
		e.options = append(e.options, rlock.WithMaxHold(maxHold))
	}
	return e, 0, true
}

// runLabel is the default label: host name and pid.
func runLabel() string {
	host, err := os.Hostname()
	label := fmt.Sprintf("%s pid %d", host, os.Getpid())
	if err != nil || !kinds.IsLabel(label) {
		return fmt.Sprintf("pid %d", os.Getpid())
	}
	return label
}

// run takes a lock, runs a command and releases the lock.
func (p *program) run(args []string) int {
	e, code, ok := p.parseErrand(args)
	if !ok {
		return code
	}
	// Before the wait for the lock: a misspelt command should not delay others.
	var err error
	if e.path, err = exec.LookPath(e.argv[0]); err == nil {
		err = checkScript(e.path)
	}
	if err != nil {
		return p.fail(startCode(err), err)
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, heeded(os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)...)
	defer signal.Stop(signals)
	// If the reader of our stderr goes away, SIGPIPE would end us with the lock held. Notify instead of Ignore: the command would inherit the
	// latter.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)
	said := newNotes(p.err)
	defer said.end()
	fail := func(code int, err error) int {
		said.say(trimPrefix(err))
		return code
	}

	began := time.Now()
	connected, code, ok := p.dial(&e.target, true)
	if !ok {
		return code
	}
	var rdb rueidis.Client
	var late <-chan time.Time
	most := max(e.wait, connectTime)
	if !e.forever {
		late = time.After(most)
	}
	select {
	case c := <-connected:
		if c.err != nil {
			return fail(exitInternal, c.err)
		}
		rdb = c.rdb
	case s := <-signals:
		return signalled{s}.exitCode()
	case <-late:
		return fail(exitInternal, fmt.Errorf("%s: no answer within %s", strings.Join(e.target.where, ","), most))
	}
	e.wait = max(0, e.wait-time.Since(began))
	waits, renewed := make(chan string, 1), make(chan struct{}, 1)
	client, err := rlock.New(rdb, rlock.Options{WatchdogTimeout: e.watchdog, UnlockTimeout: unlockTime, Prefix: e.target.prefix, Label: e.label, Trace: &rlock.Trace{
		Waiting: func(_ context.Context, i rlock.WaitingInfo) {
			select {
			case waits <- i.Holder:
			default: // the periodic looks catch up
			}
		},
		Renewed: func(rlock.RenewedInfo) {
			select {
			case renewed <- struct{}{}:
			default: // whoever reads it next asks for the newest
			}
		},
	}})
	if err != nil {
		return p.misuse(err, "run")
	}
	closing := leaveTime // without the lock, nothing is left to do in Redis
	defer func() { closeSoon(closing, client.Close, rdb.Close) }()
	// "rlock show" finds our host by this name. A reconnect loses it; nothing depends on it.
	named, cancel := context.WithTimeout(context.Background(), asideTime)
	_ = rdb.Do(named, rdb.B().ClientSetname().ConnectionName("rlock:"+client.ID()).Build())
	cancel()

	ctx, giveUp := context.WithCancelCause(context.Background())
	defer giveUp(nil)
	k := keeper{
		errand: e, lock: e.kind(client, e.name, e.options...), notes: said, signals: signals, renewed: renewed,
		seen: &viewer{rdb: rdb, known: make(map[string]string)},
	}
	held, unlock, err := k.acquire(ctx, giveUp, waits)
	var s signalled
	switch {
	case err == nil:
		closing = closeTime
		return k.run(held, p, unlock)
	case errors.Is(err, errNested):
		return fail(exitInternal, fmt.Errorf("%q: %w", e.name, err))
	case errors.As(err, &s):
		return s.exitCode()
	case errors.Is(err, rlock.ErrNotAcquired) && !errors.Is(err, rlock.ErrUnreachable):
		if e.skip && !e.verbose {
			return e.busy
		}
		var not *rlock.NotAcquiredError
		if errors.As(err, &not) && not.HolderLabel == "" {
			not.HolderLabel = k.labelOf(not.Holder, asideTime)
		}
		return fail(e.busy, err)
	default:
		return fail(exitInternal, e.target.at(err))
	}
}

// ownersVariable has the owners of a run and of those around it, whose locks are not free before the command ends.
const ownersVariable = "RLOCK_OWNERS"

// environment is the command's: ours, and the facts about its lock.
func (e errand) environment(held context.Context) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "RLOCK_TOKEN=") || strings.HasPrefix(v, ownURL+"=") // of an outer run
	})
	owner := rlock.Owner(held)
	env = append(env, "RLOCK_NAME="+e.name, "RLOCK_OWNER="+owner, ownersVariable+"="+strings.Join(append(e.outer, owner), " "))
	if token, ok := rlock.FencingToken(held, e.name); ok {
		env = append(env, "RLOCK_TOKEN="+strconv.FormatInt(token, 10))
	}
	return env
}

// startCode is the exit code for a command that cannot be started.
func startCode(err error) int {
	var guard guardError
	if errors.As(err, &guard) {
		return exitInternal
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return exitNotFound
	}
	return exitCannotRun
}

// checkScript reports an interpreter that is missing after a script's #!.
func checkScript(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return nil // it may be executable, and not readable
	}
	defer func() { _ = f.Close() }()
	head := make([]byte, 256)
	n, _ := io.ReadFull(f, head)
	line, isScript := strings.CutPrefix(string(head[:n]), "#!")
	line, _, complete := strings.Cut(line, "\n")
	words := strings.Fields(line)
	if !isScript || !complete || len(words) == 0 {
		return nil
	}
	if strings.HasSuffix(line, "\r") && len(words) == 1 {
		words[0] += "\r" // as the kernel reads it
	}
	if _, err := os.Stat(words[0]); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: its interpreter %q: %w", path, words[0], fs.ErrNotExist)
	}
	return nil
}
