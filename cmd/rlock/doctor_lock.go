package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// trial is a kind of lock to take, and a lock that others cannot have meanwhile.
type trial struct {
	kind         string
	holds, wants func(c *rlock.Client, name string) rlock.Locker
}

// trials begins with the lock without which nothing works.
func trials() []trial {
	mutex := func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name) }
	fenced := func(c *rlock.Client, name string) rlock.Locker { return c.FencedMutex(name) }
	fair := func(c *rlock.Client, name string) rlock.Locker { return c.FairMutex(name) }
	read := func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Read() }
	write := func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Write() }
	fencedWrite := func(c *rlock.Client, name string) rlock.Locker { return c.FencedRWMutex(name).Write() }
	upgradeable := func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Upgradeable() }
	return []trial{
		{"Mutex", mutex, mutex}, {"FencedMutex", fenced, fenced}, {"FairMutex", fair, fair}, {"RWMutex.Read", read, write},
		{"RWMutex.Write", write, read}, {"FencedRWMutex.Write", fencedWrite, fencedWrite}, {"Upgradeable", upgradeable, upgradeable},
	}
}

var errTwo = errors.New("two have it at once")

// run takes the lock, lets another process find it taken, and releases it.
func (t trial) run(ctx context.Context, locks, others *rlock.Client, name string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	unlock, err := take(ctx, t.holds(locks, name))
	if err != nil {
		return unnamed(name, err)
	}
	defer func() { _ = unlock() }() // again, unless something fails
	switch unlockOther, err := try(ctx, t.wants(others, name)); {
	case err == nil:
		_ = unlockOther() // what is wrong is known
		return errTwo
	case !errors.Is(err, rlock.ErrNotAcquired):
		return fmt.Errorf("while it is taken: %w", unnamed(name, err))
	}
	if err := unlock(); err != nil {
		return fmt.Errorf("unlock: %w", unnamed(name, err))
	}
	return nil
}

// take takes a lock that is free, except while an own call that was answered too late is being undone.
func take(ctx context.Context, l rlock.Locker) (rlock.UnlockFunc, error) {
	_, unlock, err := l.Lock(ctx)
	return unlock, err
}

// try tries again if the server needs longer to answer than a TryLock waits.
func try(ctx context.Context, l rlock.Locker) (unlock rlock.UnlockFunc, err error) {
	for range 5 {
		if _, unlock, err = l.TryLock(ctx, 0); !errors.Is(err, rlock.ErrUnreachable) || ctx.Err() != nil {
			break
		}
	}
	return unlock, err
}

// unnamed is an error without "rlock: " and the name of the doctor's own lock.
func unnamed(name string, err error) error {
	return errors.New(strings.TrimPrefix(trimPrefix(err), strconv.Quote(name)+": "))
}

// refusals maps the first word of an error by which a server refuses all writes to its cure.
var refusals = map[string]string{
	"NOREPLICAS": " It needs more replicas than it has: connect them, or set min-replicas-to-write to 0.",
	"MISCONF":    " It could not save its data to disk: see its log. stop-writes-on-bgsave-error no makes it accept writes anyway.",
	"OOM":        " Its memory is full: raise maxmemory, or delete unneeded data.",
	"READONLY":   " It is a replica.",
	"NOAUTH":     " It requires a password.",
}

func cure(err error) string {
	for word, says := range refusals {
		if strings.Contains(err.Error(), word+" ") {
			return says
		}
	}
	return ""
}

// lock takes a lock of each kind, because some refusals show in no setting, and some only in the answer about a taken lock.
func (e *examination) lock(ctx context.Context) {
	if e.name == "" { // no slot, no lock
		return
	}
	// The counter of fenced locks outlives them.
	_ = e.Do(ctx, e.B().Set().Key(tokenKey(e.name)).Value("0").Px(time.Minute).Build()).Error()
	defer func() { _ = e.Do(ctx, e.B().Del().Key(tokenKey(e.name)).Build()).Error() }()
	var well, forbidden []string
	for i, t := range trials() {
		err := t.run(ctx, e.locks, e.others, e.name)
		first := i == 0
		switch {
		case err == nil:
			well = append(well, t.kind)
		case isForbidden(err) && first:
			e.say("unknown", "lock", "the current user may not take it: "+err.Error(), "If your program uses this user, pass one of its lock names with "+
				"-name, or see the rights below.")
			return
		case isForbidden(err):
			forbidden = append(forbidden, t.kind)
		case first || errors.Is(err, errTwo):
			e.say("bad", "lock", t.kind+" fails: "+err.Error(), "Locks fail like this."+cure(err))
			if first {
				return
			}
		default:
			e.say("warn", "lock", t.kind+" fails: "+err.Error(), "Concerns this kind only.")
		}
	}
	e.takes = true
	e.say("ok", "lock", "taken, refused to another, and released", "Test locks, removed again: "+strings.Join(well, ", ")+".")
	if len(forbidden) > 0 {
		e.say("unknown", "lock", "the current user may not take a "+strings.Join(forbidden, ", "), "See the rights below.")
	}
}

// deaf is the log of the Client that waits. It keeps a warning that no message reaches that Client, which then looks once a second.
type deaf chan string

func (d deaf) Enabled(context.Context, slog.Level) bool { return true }
func (d deaf) WithAttrs([]slog.Attr) slog.Handler       { return d }
func (d deaf) WithGroup(string) slog.Handler            { return d }

func (d deaf) Handle(_ context.Context, r slog.Record) error {
	if !strings.Contains(r.Message, "takes no subscription") {
		return nil
	}
	text := strings.TrimPrefix(r.Message, "rlock: ")
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "err" {
			text += ": " + a.Value.String()
		}
		return true
	})
	select {
	case d <- text:
	default:
	}
	return nil
}

// pubsub waits for a lock, because a Lock that waits needs messages.
func (e *examination) pubsub(ctx context.Context) {
	if !e.takes {
		e.say("unknown", "pub/sub", "not tried, as no lock could be taken", "A Lock that waits listens for the unlock.")
		return
	}
	woken, err := e.wake(ctx)
	switch {
	case isForbidden(err):
		e.say("unknown", "pub/sub", "the current user may not wait: "+err.Error(), "See the rights below.")
		return
	case err != nil:
		e.say("bad", "pub/sub", "a Lock that waits fails: "+err.Error(), "Waiting needs SUBSCRIBE and PUBLISH, on a cluster of Redis 7 SSUBSCRIBE and SPUBLISH: "+
			"connect to the server itself, without a proxy that lacks them.")
		return
	}
	e.woken = woken
	const means = "An unlock hands the lock to the next process, and notifies only that one."
	if !e.cluster {
		e.say("ok", "pub/sub", "plain: not a cluster", means)
		return
	}
	if err := e.Do(ctx, e.B().Arbitrary("PUBSUB", "SHARDNUMSUB").Build()).Error(); err != nil {
		e.say("warn", "pub/sub", "a cluster without sharded channels: "+err.Error(), "Each unlock message goes to all nodes and wakes a waiter in every process, "+
			"without an order between them (Without a line).")
		return
	}
	e.say("ok", "pub/sub", "sharded", means)
}

// wake returns how long after the unlock a waiting process had the lock.
func (e *examination) wake(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	mutex := e.locks.Mutex(e.name)
	unlock, err := take(ctx, mutex)
	if err != nil {
		return 0, unnamed(e.name, err)
	}
	defer func() { _ = unlock() }() // again, unless something fails
	type wait struct {
		over time.Time
		err  error
	}
	waits := make(chan wait, 1)
	go func() { // ends with ctx
		_, unlockOther, err := e.others.Mutex(e.name).Lock(ctx)
		over := time.Now()
		if err == nil {
			err = unlockOther()
		}
		waits <- wait{over, err}
	}()
	// Three seconds, where the server does not show who listens: so long it takes to notice that nobody can.
	for listens := time.Now().Add(3 * time.Second); time.Now().Before(listens); {
		if info, err := mutex.Info(ctx); err == nil && info.Listening > 0 {
			break
		}
		select {
		case why := <-e.deaf:
			return 0, errors.New(why)
		case w := <-waits:
			if w.err == nil {
				return 0, errTwo
			}
			return 0, unnamed(e.name, w.err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	began := time.Now()
	if err := unlock(); err != nil {
		return 0, unnamed(e.name, err)
	}
	w := <-waits
	switch {
	case errors.Is(w.err, context.DeadlineExceeded):
		return 0, errors.New("it was not woken by the unlock")
	case w.err != nil:
		return 0, unnamed(e.name, w.err)
	}
	return w.over.Sub(began), nil
}
