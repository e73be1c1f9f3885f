package counter

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/lua"
)

// How a combiner uses a latch.
//
// A message is only a hint: it may be older than a waiter. Only a look that began after the waiter came is certain. The first such look finds
// the call that set the latch. If a later look finds another call, the latch was open in between. So a waiter goes on even if its latch was
// set anew at once, and no waiter goes on that came after that.

const (
	// latchKept is how long Redis remembers a call: copies are sent for a minute, and may arrive another minute late.
	latchKept = 2 * sweep.Most
	// latchGrain is how long new waiters gather, if others wait, before there is a look for them.
	latchGrain = 10 * time.Millisecond
	// latchLook is the longest sleep of waiters: deleting a count by hand publishes no message.
	latchLook = time.Minute
)

// passed returns the indices of those whose latch is open, or was since their first look: then another call has set it.
func passed(look lua.Latch, waiters []*counterWaiter) (which []int) {
	for i, w := range waiters {
		if look.Count <= 0 || w.seen && look.Set != "" && look.Set != w.set {
			which = append(which, i)
		} else if !w.seen {
			w.set = look.Set
		}
	}
	return which
}

// useLatch makes a change, or else looks. A call that ends another one has nothing to undo, and repeats only a change that stays.
func (m Counter) useLatch(ctx context.Context, args lua.PermitsArgs) (reply counterReply, err error) {
	c := m.Client
	call := lua.LatchCall{
		Name: m.Key, Record: m.Queue, Client: c.ID, Number: uint64(args.Request), Keep: latchKept, Publish: args.Publish,
	}
	var did bool
	switch {
	case args.Change == CountDown:
		did, err = lua.CountDown(ctx, c.RDB, call, args.N)
	case args.Change == SetCount:
		did, err = lua.SetCount(ctx, c.RDB, call, args.N)
	case args.Change == DeleteLatch && args.Cancel:
	case args.Change == DeleteLatch:
		did, err = lua.DeleteLatch(ctx, c.RDB, call)
	default:
		reply.latch, err = lua.LookAtLatch(ctx, c.RDB, m.Key, m.Queue)
		reply.Free = reply.latch.Count
		if reply.Again = reply.latch.TTL; reply.Again < 0 || reply.Again > latchLook {
			reply.Again = latchLook
		}
	}
	if did {
		reply.Done = 1
	}
	return reply, err
}
