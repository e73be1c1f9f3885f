package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// keeper holds the lock while the command runs.
type keeper struct {
	errand
	lock    *rlock.Mutex
	notes   *notes
	signals chan os.Signal
	renewed <-chan struct{} // the lock is trusted for longer
	seen    *viewer         // of labels
}

// acquire takes the lock, unless a signal comes first: then it cancels ctx through giveUp. waits delivers the first holder seen.
func (k *keeper) acquire(ctx context.Context, giveUp context.CancelCauseFunc, waits <-chan string) (context.Context, rlock.UnlockFunc, error) {
	type result struct {
		held   context.Context
		unlock rlock.UnlockFunc
		err    error
	}
	results := make(chan result, 1)
	began := time.Now()
	go func() { // ends soon after giveUp at the latest
		var r result
		if k.forever {
			r.held, r.unlock, r.err = k.lock.Lock(ctx)
		} else {
			r.held, r.unlock, r.err = k.lock.TryLock(ctx, k.wait)
		}
		results <- r
	}()
	looks := time.NewTicker(lookInterval)
	defer looks.Stop()
	looked, looking := make(chan whoHolds, 1), false
	look := func(owners []string) {
		if !looking && (k.verbose || len(k.outer) > 0) {
			looking = true
			go func() { looked <- k.whoHolds(ctx, owners) }() // ends with its questions: Redis may be silent
		}
	}
	stop := func(why error) (context.Context, rlock.UnlockFunc, error) {
		giveUp(why)
		if r := <-results; r.err == nil {
			return nil, nil, errors.Join(why, r.unlock())
		}
		return nil, nil, why
	}
	var seen string
	for {
		select {
		case r := <-results:
			if r.err == nil {
				k.tell("acquired after %s as %s", short(time.Since(began)), rlock.Owner(r.held))
			}
			return r.held, r.unlock, r.err
		case s := <-k.signals:
			return stop(signalled{s})
		case owner := <-waits:
			look([]string{owner})
		case <-looks.C:
			if seen != "" {
				look(nil)
			}
		case now := <-looked:
			looking = false
			if now.nested {
				return stop(errNested)
			}
			if now.holders != "" && now.holders != seen {
				seen = now.holders
				k.tell("waiting: held by %s", seen)
			}
		}
	}
}

// errNested is a wait that only its own command could end.
var errNested = errors.New(`held by the "rlock run" that this one runs under: it would wait for ever`)

// whoHolds is a lock as somebody sees it who waits for it.
type whoHolds struct {
	holders string // described; "" if it is free, or they are unknown
	nested  bool   // a run around this one is among them
}

// whoHolds looks at the lock. owners are its holders if that is known.
func (k *keeper) whoHolds(ctx context.Context, owners []string) (w whoHolds) {
	if len(owners) == 0 || len(k.outer) > 0 {
		if now, err := k.owners(ctx, lookInterval); err == nil { // the Lock itself reports errors
			owners = now
		}
	}
	w.nested = slices.ContainsFunc(owners, func(o string) bool { return slices.Contains(k.outer, o) })
	if k.verbose {
		w.holders = k.named(ctx, owners...)
	}
	return w
}

// lookInterval is the time between -v's looks at the holder, and the time limit of a look.
const lookInterval = time.Second

// named returns owners behind their labels, if they have some. It reads these itself: the library learns them in the background, and this
// process may be about to end.
func (k *keeper) named(ctx context.Context, owners ...string) string {
	ids := make(map[string]bool)
	for _, owner := range owners {
		if saysLabel(owner) {
			ids[clientID(owner)] = true
		}
	}
	return strings.Join(labelledAll(owners, k.seen.labels(ctx, ids)), ", ")
}

// labelOf returns the label of an owner, or "" if Redis does not answer in time.
func (k *keeper) labelOf(owner string, within time.Duration) string {
	if !saysLabel(owner) {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	id := clientID(owner)
	fresh := viewer{rdb: k.seen.rdb, known: make(map[string]string)} // a look may still have the other
	return fresh.labels(ctx, map[string]bool{id: true})[id]
}

func (k *keeper) owners(ctx context.Context, most time.Duration) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	info, err := k.lock.Info(ctx)
	var owners []string
	for _, h := range info.Holders {
		owners = append(owners, h.Owner)
	}
	return owners, err
}

// tell prints a -v message about the lock.
func (k *keeper) tell(format string, args ...any) {
	if k.verbose {
		k.notes.say(fmt.Sprintf("%q: %s", k.name, fmt.Sprintf(format, args...)))
	}
}

// run runs the command inside the lock.
func (k *keeper) run(held context.Context, p *program, unlock rlock.UnlockFunc) int {
	var code int
	began, owner := time.Now(), rlock.Owner(held)
	if jobs := jobSignals(); len(jobs) > 0 { // until now these signals stopped only us
		signal.Notify(k.signals, jobs...)
	}
	if err := held.Err(); err != nil { // this process was stopped
		k.notes.say(trimPrefix(context.Cause(held)) + ": the command was not run")
		_ = unlock() // same error
		return exitLost
	}
	until := func() time.Time {
		t, _ := rlock.TrustedUntil(held)
		return t
	}
	child, err := p.start(&k.errand, k.environment(held), until())
	if err != nil {
		code = startCode(err)
		k.notes.say(err.Error())
	} else {
		code = child.follow(keeping{
			held: held, killAfter: k.killAfter, renewed: k.renewed, until: until,
			asked: rlock.Asked(held),
			yield: func() syscall.Signal {
				k.tell("somebody waits for the lock")
				return k.errand.asked
			},
			sure: func() bool { return k.sure(held) },
			lost: func() {
				why := errLostUnseen
				if err := context.Cause(held); err != nil {
					why = err
				}
				k.notes.say(trimPrefix(why) + ": stopping the command")
			},
		}, k.signals)
		p.interrupt = child.interrupt
	}
	switch err := unlock(); {
	case errors.Is(err, rlock.ErrLost):
		// Even if the command ended by itself: another holder may have been inside with it.
		k.notes.say(fmt.Sprintf("%q: the lock was lost; the command ended with code %d", k.name, code))
		return exitLost
	case err != nil: // the command was alone; others only wait a little longer
		left := "the lock stays until its lease expires"
		if owners, err := k.owners(context.Background(), asideTime); err == nil && !slices.Contains(owners, owner) {
			left = "the lock is free"
		}
		k.notes.say(trimPrefix(err) + ": " + left)
	default:
		k.tell("released after %s", short(time.Since(began)))
	}
	return code
}

var errLostUnseen = errors.New("lost while this process was stopped")

// settleTime lets timers run that were due while this process was stopped.
const settleTime = 50 * time.Millisecond

// sure reports whether the lock is still held after this process was stopped. If Redis does not answer, it waits for the lease to end.
func (k *keeper) sure(held context.Context) bool {
	for held.Err() == nil {
		owners, err := k.owners(held, lookInterval)
		select {
		case <-held.Done():
		case <-time.After(settleTime):
			switch {
			case err == nil:
				return slices.Contains(owners, rlock.Owner(held))
			case isForbidden(err): // rely on the timers
				return true
			}
		}
	}
	return false
}
