package counter

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lua"
)

// Latch is a count-down latch.
//
// A message is only a hint: it may be older than a waiter. Only a look that began after the waiter came is certain. The first such look finds
// the call that set the latch. If a later look finds another call, the latch was open in between. So a waiter goes on even if its latch was
// set anew at once, and no waiter goes on that came after that.
type Latch struct{ Counter }

const (
	// latchKept is how long Redis remembers a call: copies are sent for a minute, and may arrive another minute late.
	latchKept = 2 * sweep.Most
	// latchGrain is how long new waiters gather, if others wait, before there is a look for them.
	latchGrain = 10 * time.Millisecond
	// latchLook is the longest sleep of waiters: deleting a count by hand publishes no message.
	latchLook = time.Minute
)

// Latch returns the latch with that key. name is the user's name for it.
func (all *Counters) Latch(key, name string, t tenure.Terms) Latch {
	return Latch{all.get(key, kinds.Latch, name, t)}
}

// Count returns how many count-downs are left.
func (m Latch) Count(ctx context.Context) (int64, error) {
	n, err := tenure.Query(ctx, m.Lock, func(ctx context.Context) (int64, error) { return lua.LatchCount(ctx, m.Client.RDB, m.Key) })
	return max(n, 0), err
}

// TrySetCount sets the count, if there is none.
func (m Latch) TrySetCount(ctx context.Context, n int64) (bool, error) {
	did, err := m.Change(ctx, setCount, n)
	return did == 1, err
}

// CountDown counts down by one.
func (m Latch) CountDown(ctx context.Context) error {
	_, err := m.Change(ctx, countDown, 1)
	return err
}

// Delete deletes the latch.
func (m Latch) Delete(ctx context.Context) (bool, error) {
	did, err := m.Change(ctx, deleteLatch, 0)
	return did == 1, err
}

// Await waits until there is no count.
func (m Latch) Await(who tenure.Caller) error { return m.await(who, new(counterWaiter)) }

// useLatch makes a change, or else looks. A call that ends another one has nothing to undo, and repeats only a change that stays.
func (m Counter) useLatch(ctx context.Context, args lua.PermitsArgs) (reply counterReply, err error) {
	c := m.Client
	call := lua.LatchCall{
		Name: m.Key, Record: m.Queue, Client: c.ID, Number: uint64(args.Request), Keep: latchKept, Publish: args.Publish,
	}
	var did bool
	switch {
	case args.Change == countDown:
		did, err = lua.CountDown(ctx, c.RDB, call, args.N)
	case args.Change == setCount:
		did, err = lua.SetCount(ctx, c.RDB, call, args.N)
	case args.Cancel:
	case args.Change == deleteLatch:
		did, err = lua.DeleteLatch(ctx, c.RDB, call)
	default:
		reply.latch, err = lua.LookAtLatch(ctx, c.RDB, m.Key, m.Queue)
		if reply.Again = reply.latch.TTL; reply.Again < 0 || reply.Again > latchLook {
			reply.Again = latchLook
		}
	}
	if did {
		reply.Done = 1
	}
	return reply, err
}
