package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// The two locks of the demo, and what they guard. Who needs both takes tea first.
const (
	tea  = "tea"  // guards the stock
	till = "till" // guards the payments
)

// stockAtOpening is more than can be sold in the time of the demo.
const stockAtOpening = 10_000

// shop is the business code of the demo: layers that each take the locks they need, without knowing
// who called them.
type shop struct {
	workerConfig
	rdb    rueidis.Client
	locks  *rlock.Client
	report func(event)
	crash  <-chan struct{} // whoever receives stops in mid-section
}

// clerk is one goroutine of the shop.
type clerk struct {
	*shop
	number int
}

// ship sells one packet of tea.
func (c clerk) ship(ctx context.Context) error {
	return c.inside(ctx, tea, "Ship", func(ctx context.Context) error {
		pause(ctx, 1, 2) // some work of its own
		if err := c.reserve(ctx); err != nil {
			return err
		}
		return c.charge(ctx)
	})
}

// reserve takes a packet from the stock. Called by ship, its Lock re-enters.
func (c clerk) reserve(ctx context.Context) error {
	return c.inside(ctx, tea, "Reserve", func(ctx context.Context) error {
		return c.add(ctx, tea, -1, 2, 5)
	})
}

// charge re-enters too, and takes a second lock inside.
func (c clerk) charge(ctx context.Context) error {
	return c.inside(ctx, tea, "Charge", func(ctx context.Context) error {
		return c.inside(ctx, till, "Charge", func(ctx context.Context) error {
			select {
			case <-c.crash:
				c.report(event{Kind: stuck, Clerk: c.number})
				<-ctx.Done()
				return context.Cause(ctx)
			default:
			}
			return c.add(ctx, till, 1, 1, 3)
		})
	})
}

// deposit needs the till alone, so that there is somebody to wait for it.
func (c clerk) deposit(ctx context.Context) error {
	return c.inside(ctx, till, "Deposit", func(ctx context.Context) error {
		return c.add(ctx, till, 1, 1, 3)
	})
}

// add changes a counter the way that only the holder of a lock may: it reads, takes its time, and
// writes what it worked out. Without the lock an update in between would be overwritten.
func (c clerk) add(ctx context.Context, what string, n, minMillis, maxMillis int) error {
	key := c.key("count", what)
	count, err := c.rdb.Do(ctx, c.rdb.B().Get().Key(key).Build()).AsInt64()
	if err != nil {
		return err
	}
	pause(ctx, minMillis, maxMillis)
	count += int64(n)
	err = c.rdb.Do(ctx, c.rdb.B().Set().Key(key).Value(strconv.FormatInt(count, 10)).Build()).Error()
	if err == nil {
		c.report(event{Kind: wrote, Clerk: c.number, Lock: what})
	}
	return err
}

// inside runs fn inside the lock, and reports when it enters and leaves. It also keeps a witness
// in Redis, which shows an overlap without any clock: whoever enters leaves its name there, and
// should find nobody else's.
func (c clerk) inside(ctx context.Context, lock, layer string, fn func(context.Context) error) error {
	want := time.Now()
	depth := depthOf(ctx, lock) + 1
	mutex := c.locks.Mutex(c.key("lock", lock))
	section := func(ctx context.Context) error {
		enter := event{
			Kind: entered, Clerk: c.number, Lock: lock, Layer: layer, Depth: depth,
			At: time.Now().UnixNano(), Want: want.UnixNano(),
		}
		ctx = context.WithValue(ctx, depthKey(lock), depth)
		me, witness := fmt.Sprint(c.Letter, c.number), c.key("inside", lock)
		var err error
		if depth == 1 {
			enter.Found, err = c.ask(ctx, c.rdb.B().Getset().Key(witness).Value(me).Build())
		} else {
			err = c.checkDepth(ctx, mutex, depth)
		}
		if err != nil {
			return err
		}
		c.report(enter)
		if err := fn(ctx); err != nil {
			return err
		}
		leave := event{Kind: left, Clerk: c.number, Lock: lock, Depth: depth}
		if depth == 1 {
			if leave.Found, err = c.ask(ctx, c.rdb.B().Getdel().Key(witness).Build()); err != nil {
				return err
			}
			if leave.Found == me {
				leave.Found = ""
			}
		}
		leave.At = time.Now().UnixNano()
		c.report(leave)
		return nil
	}
	if c.Cheats {
		return section(ctx)
	}
	return mutex.Do(ctx, section)
}

// ask returns a text, "" for none.
func (c clerk) ask(ctx context.Context, cmd rueidis.Completed) (string, error) {
	text, err := c.rdb.Do(ctx, cmd).ToString()
	if rueidis.IsRedisNil(err) {
		return "", nil
	}
	return text, err
}

// checkDepth asks Redis how deep the owner in ctx is in the lock.
func (c clerk) checkDepth(ctx context.Context, m *rlock.Mutex, want int) error {
	if c.Cheats {
		return nil
	}
	switch got, err := m.HoldCount(ctx); {
	case err != nil:
		return err
	case got != want:
		return fmt.Errorf("re-entry: Redis counts %d holds, want %d", got, want)
	}
	return nil
}

// depthKey is the key of the number of sections of a lock that a context is in.
type depthKey string

func depthOf(ctx context.Context, lock string) int {
	n, _ := ctx.Value(depthKey(lock)).(int)
	return n
}

// pause takes a random time.
func pause(ctx context.Context, minMillis, maxMillis int) {
	timer := time.NewTimer(time.Duration(minMillis)*time.Millisecond +
		rand.N(time.Duration(maxMillis-minMillis)*time.Millisecond))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
