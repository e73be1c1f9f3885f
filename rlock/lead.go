package rlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// leadPause is the longest pause between two attempts of [Lead]. The shortest is half of it: processes that an outage has ended
// together do not come back in one moment.
const leadPause = 500 * time.Millisecond

// Lead runs fn for as long as this process is the leader, that is, while it holds l. It waits for the lock, and runs fn with the
// ctx of the section: fn should do the leader's work until that ctx is done, and then return soon. If the hold was lost by then, Lead
// waits for the lock again, whatever fn returned, and runs fn again. So fn never runs twice at a time in this process, and has to be
// one that can begin anew. Lead returns only in the following cases:
//
//  1. fn has returned, and the hold was not lost: what [Mutex.Do] returns, so nil if fn and the unlock were fine.
//  2. ctx is done, and fn, if it ran, has returned: the same, or the error of the [Mutex.Lock] that waited.
//  3. Lock failed for a reason that does not pass, such as a bad option or a Client that is closed: its error.
//
// After a loss, and after a Lock that failed with [ErrUnreachable], [ErrNotReplicated] or [ErrLost], there is a pause of at most
// half a second. Lead does not report these; [Options].Logger and [Options].Trace do.
//
// To end a process in order, cancel ctx, wait for Lead to return, and then call [Client.Shutdown]: the next leader has the lock at
// once. If a process dies, it has it when the lease has ended.
//
// A leader that was paused may do something after another one has begun, as with every lock: see [Client.FencedMutex]. Lead panics if l or
// fn is nil.
func Lead(ctx context.Context, l Locker, fn func(ctx context.Context) error) error {
	if l == nil || fn == nil {
		panic("rlock: Lead of a nil Locker or function")
	}
	for {
		again := false
		err := inside(ctx, func(ctx context.Context) (context.Context, UnlockFunc, error) {
			ctx, unlock, err := l.Lock(ctx)
			again = errors.Is(err, ErrUnreachable) || errors.Is(err, ErrNotReplicated) || errors.Is(err, ErrLost)
			return ctx, func() error {
				err := unlock()
				again = errors.Is(err, ErrLost)
				return err
			}, err
		}, fn)
		if !again || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done(): // the next Lock says so
		case <-time.After(leadPause/2 + rand.N(leadPause/2)):
		}
	}
}
