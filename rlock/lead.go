package rlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// leadPause is the longest pause between two attempts of [Lead]. The shortest is half of it: processes that lost their locks in one
// outage do not ask again in one moment.
const leadPause = 500 * time.Millisecond

// Lead runs fn while this process is the leader, that is, while it holds l. It waits for the lock, and runs fn with the ctx of the
// section. fn does the leader's work until that ctx is done, and then returns soon. If the hold was lost by then, Lead waits for the
// lock again and runs fn again, whatever fn returned. So fn has to be able to begin anew; it never runs twice at a time in one Lead.
// Lead returns only in the following cases:
//
//  1. fn has returned, and the hold was not lost. The error is what [Mutex.Do] returns: nil if fn and the unlock were fine.
//  2. ctx is done, and fn, if it ran, has returned. The error is the same, or that of the [Mutex.Lock] that waited.
//  3. Lock failed for a reason that does not pass, such as a bad option or a Client that is closed. The error is that of Lock.
//
// After a loss, and after a Lock that failed with [ErrUnreachable], [ErrNotReplicated] or [ErrLost], Lead pauses for half a second at
// most. It does not report these; [Options].Logger tells of losses, and [Options].Trace of all.
//
// To end a process in order, cancel ctx, wait until Lead has returned, and call [Client.Shutdown]: the next leader has the lock at
// once. If a process dies, the next leader has the lock when its lease has ended.
//
// As with every lock, a leader that was paused may still act when another one has begun: see [Client.FencedMutex]. Lead panics if l or
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
