package rlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/lua"
)

// leadPause is the longest pause between two attempts of [Lead]. The shortest is half of it, so that processes that lost their locks in
// one outage do not all ask again at once.
const leadPause = 500 * time.Millisecond

// Refusals, which somebody has to mend, are pauses that double up to refusedPause, and a line in the log for each new one and every
// refusedLog.
const (
	refusedPause = 4 * time.Second
	refusedLog   = time.Minute
)

// Lead runs fn with the section's ctx while this process is the leader, that is, while it holds l. fn works until that ctx is done, and then
// returns soon. If the hold was lost by then, or the leader has resigned ([ResignWhenAsked]), Lead waits for the lock again and runs fn again,
// whatever fn returned; never twice at the same time. It returns only in the following cases:
//
//  1. fn has returned before its ctx was done, and the hold was not lost. The error is what [Mutex.Do] returns.
//  2. ctx is done, and fn has returned. The error satisfies errors.Is for ctx.Err(), and for what fn returned.
//  3. The Client of l is closed or shut down, and fn has returned. In the same way the error satisfies [ErrClosed].
//  4. Lock failed for a reason that only the program can mend: a bad option or name, a key that is no lock, [ErrReentry], [ErrUpgrade], or
//     [ErrDeadlock].
//
// Otherwise it tries again within half a second, or four seconds if Redis refuses (NOAUTH, OOM …), which [Options].Logger reports.
//
// To end in order, cancel ctx, wait for Lead, and call [Client.Shutdown]: the next leader gets the lock at once. A paused leader may still act
// after another one has begun: see [Client.FencedMutex].
func Lead(ctx context.Context, l Locker, fn func(ctx context.Context) error, options ...LeadOption) error {
	if l == nil || fn == nil || slices.Contains(options, nil) {
		panic("rlock: Lead of a nil Locker, function or option")
	}
	var how leadership
	for _, o := range options {
		o.applyTo(&how)
	}
	var pause leadPauses
	for {
		again := false
		var refused error // by Redis
		var over error    // why the ctx of fn was done when it returned
		_, err := section(ctx, func(ctx context.Context) (context.Context, UnlockFunc, error) {
			ctx, unlock, err := l.Lock(ctx)
			again, refused = mayHeal(err)
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
		case <-time.After(pause.next(l, refused)):
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

// mayHeal reports whether a later Lock may succeed though the program stays as it is, and whether Redis has refused this one.
func mayHeal(err error) (again bool, refused error) {
	var redisErr *rueidis.RedisError
	switch {
	case errors.Is(err, ErrClosed), errors.Is(err, ErrDeadlock), errors.Is(err, lua.ErrForeign):
		return false, nil
	case errors.Is(err, ErrUnreachable), errors.Is(err, ErrNotReplicated), errors.Is(err, ErrLost), errors.Is(err, ErrNotAcquired):
		return true, nil
	case errors.As(err, &redisErr):
		return true, err
	}
	return false, nil
}

type leadPauses struct {
	refused time.Duration // the next one after a refusal; 0: the last Lock was not refused
	said    string        // in the log
	logged  time.Time
}

// next returns the next pause. refused is Redis's refusal of the Lock before it, if it was that.
func (p *leadPauses) next(l Locker, refused error) time.Duration {
	most := leadPause
	if refused == nil {
		*p = leadPauses{}
	} else {
		most = max(leadPause, p.refused)
		p.refused = min(2*most, refusedPause)
		if said := refused.Error(); said != p.said || time.Since(p.logged) >= refusedLog {
			p.said, p.logged = said, time.Now()
			if c, _ := clientOf(l); c != nil {
				c.tells().Warn("rlock: Redis refuses a candidate of Lead, which goes on trying", "name", l.Name(), "err", refused)
			}
		}
	}
	return most/2 + rand.N(most/2)
}
