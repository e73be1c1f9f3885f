package rlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/lua"
)

// leadPause is the longest pause between two attempts of [Lead]. The shortest is half of it, so that processes that lost their locks in
// one outage do not all ask again at once.
const leadPause = 500 * time.Millisecond

// Lead runs fn while this process is the leader, that is, while it holds l. It waits for the lock, and runs fn with the section's ctx. fn
// does the leader's work until that ctx is done, and then returns soon.
//
// If the hold was lost by then, or the leader has resigned ([ResignWhenAsked]), Lead waits for the lock again and runs fn again, whatever
// fn returned. So fn must be able to start afresh; one Lead never runs it twice at the same time.
//
// Lead returns only in the following cases:
//
//  1. fn has returned before its ctx was done, and the hold was not lost. The error is what [Mutex.Do] returns: nil if fn and the
//     unlock were fine.
//  2. ctx is done, and fn, if it ran, has returned. The error satisfies errors.Is for ctx.Err(), for the leader as for those that
//     wait, and for what fn returned. It is never nil, as with the Serve of a [net/http.Server] that is shut down.
//  3. The Client of l is closed or shut down, and fn, if it ran, has returned. In the same way the error satisfies [ErrClosed].
//  4. Lock failed for a reason that does not pass, such as a bad option. The error is that of Lock.
//
// Lead pauses for half a second at most after a loss or a resignation. It pauses likewise after a Lock that failed with [ErrUnreachable],
// [ErrNotReplicated] or [ErrLost], or because Redis took no writes just then (NOREPLICAS, MISCONF, OOM). It does not report these;
// [Options].Logger reports losses, and [Options].Trace all of them.
//
// To end a process in order, cancel ctx, wait until Lead has returned, and call [Client.Shutdown]: the next leader then gets the lock at
// once. If a process dies, the next leader gets the lock when its lease has expired.
//
// As with every lock, a paused leader may still act after another one has begun: see [Client.FencedMutex]. Lead panics if l, fn or an
// option is nil.
func Lead(ctx context.Context, l Locker, fn func(ctx context.Context) error, options ...LeadOption) error {
	if l == nil || fn == nil || slices.Contains(options, nil) {
		panic("rlock: Lead of a nil Locker, function or option")
	}
	var how leadership
	for _, o := range options {
		o.applyTo(&how)
	}
	for {
		again := false
		var over error // why the ctx of fn was done when it returned
		_, err := section(ctx, func(ctx context.Context) (context.Context, UnlockFunc, error) {
			ctx, unlock, err := l.Lock(ctx)
			again = errors.Is(err, ErrUnreachable) || errors.Is(err, ErrNotReplicated) || errors.Is(err, ErrLost) || isReadOnly(err)
			return ctx, func() error {
				err := unlock()
				again = errors.Is(err, ErrLost)
				return err
			}, err
		}, func(ctx context.Context) (err error) {
			err, over = how.lead(ctx, l.Name(), fn)
			return err
		})
		switch {
		case ctx.Err() != nil && (over != nil || again):
			why := []error{ctx.Err()}
			if cause := context.Cause(ctx); !isOurs(cause) { // not that of another lock
				why = append(why, cause)
			}
			return endOfLead(l, err, why...)
		case !again && errors.Is(over, ErrClosed):
			return endOfLead(l, err, over)
		case errors.Is(over, ErrResigned):
		case !again:
			return err
		}
		select {
		case <-ctx.Done(): // the next Lock says so
		case <-time.After(leadPause/2 + rand.N(leadPause/2)):
		}
	}
}

// endOfLead is the error of a leader that had to end for these reasons. err is the error of Do.
func endOfLead(l Locker, err error, why ...error) error {
	causes := []error{errLed}
	if err != nil {
		if errors.Is(err, why[0]) {
			return err
		}
		causes[0] = err
	}
	for _, cause := range why {
		if !errors.Is(causes[len(causes)-1], cause) {
			causes = append(causes, cause)
		}
	}
	return &lockError{name: l.Name(), causes: causes}
}

var errLed = errors.New("led until its ctx was done")

// isReadOnly reports whether an otherwise healthy server takes no writes: it has too few replicas, cannot write to its disk, or has no
// memory. That passes, but not while a Lock still repeats its calls.
func isReadOnly(err error) bool {
	var redisErr *rueidis.RedisError
	if !errors.As(err, &redisErr) {
		return false
	}
	said := lua.Said(redisErr)
	return slices.ContainsFunc([]string{"NOREPLICAS", "MISCONF", "OOM"}, func(prefix string) bool { return strings.HasPrefix(said, prefix) })
}
