package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// The two locks of the demo. Sections that need both take tea first.
const (
	tea  = "tea"  // guards the stock
	till = "till" // guards the payments
)

// shop is the demo's business code: layers that each take the locks they need, without knowledge of their callers.
type shop struct {
	workerConfig
	rdb     rueidis.Client
	locks   *rlock.Client
	report  func(*span)
	crash   chan struct{} // its receiver hangs in mid-section
	closing chan struct{} // closed at closing time
}

// clerk is one goroutine of the shop.
type clerk struct {
	*shop
	number int
	inside []*span // the current section
}

// ship sells one packet of tea.
func (c *clerk) ship(ctx context.Context) error {
	return c.in(ctx, tea, func(ctx context.Context) error {
		pause(1, 2) // some work of its own
		if err := c.reserve(ctx); err != nil {
			return err
		}
		return c.charge(ctx)
	})
}

// reserve takes a packet from the stock. Under ship, its Lock is a re-entry.
func (c *clerk) reserve(ctx context.Context) error {
	return c.in(ctx, tea, func(ctx context.Context) error { return c.add(ctx, tea, 2, 5) })
}

// charge re-enters too, and takes a second lock inside.
func (c *clerk) charge(ctx context.Context) error {
	return c.in(ctx, tea, func(ctx context.Context) error {
		return c.in(ctx, till, func(ctx context.Context) error {
			select {
			case <-c.crash:
				return c.hang()
			default:
				return c.add(ctx, till, 1, 3)
			}
		})
	})
}

// deposit needs only the till, so that others have to wait for it.
func (c *clerk) deposit(ctx context.Context) error {
	return c.in(ctx, till, func(ctx context.Context) error { return c.add(ctx, till, 1, 3) })
}

// add updates a counter unsafely on purpose: it reads, pauses, and writes. Without the lock this overwrites any update in between.
func (c *clerk) add(ctx context.Context, what string, minMillis, maxMillis int) error {
	n, err := c.count(ctx, what)
	if err != nil {
		return err
	}
	pause(minMillis, maxMillis)
	c.inside[len(c.inside)-1].Wrote = true
	return c.rdb.Do(ctx, c.rdb.B().Set().Key(c.key("count", what)).Value(strconv.Itoa(n+1)).Build()).Error()
}

func (s *shop) count(ctx context.Context, what string) (int, error) {
	text, err := s.ask(ctx, s.rdb.B().Get().Key(s.key("count", what)).Build())
	if err != nil || text == "" {
		return 0, err
	}
	return strconv.Atoi(text)
}

// ask returns a reply as text, "" for nil.
func (s *shop) ask(ctx context.Context, cmd rueidis.Completed) (string, error) {
	text, err := s.rdb.Do(ctx, cmd).ToString()
	if rueidis.IsRedisNil(err) {
		err = nil
	}
	return text, err
}

// hang stays inside and reports its section, until the process is killed or the demo ends.
func (c *clerk) hang() error {
	for _, s := range c.inside {
		c.report(s)
	}
	<-c.closing
	return errors.New("the demo has ended")
}

// in runs fn inside the lock, and reports when it entered and left.
func (c *clerk) in(ctx context.Context, lock string, fn func(context.Context) error) error {
	s := &span{Process: c.Letter, Clerk: c.number, Lock: lock, Depth: 1, Want: time.Now()}
	for _, outer := range c.inside {
		if outer.Lock == lock {
			s.Depth++
		}
	}
	mutex := c.locks.Mutex(c.key("lock", lock))
	section := func(ctx context.Context) error {
		s.From = time.Now()
		c.inside = append(c.inside, s)
		defer func() { c.inside = c.inside[:len(c.inside)-1] }()
		if err := c.arrive(ctx, mutex, s); err != nil {
			return err
		}
		if err := fn(ctx); err != nil {
			return err
		}
		if err := c.leave(ctx, s); err != nil {
			return err
		}
		s.To = time.Now()
		c.report(s)
		return nil
	}
	if c.Cheats {
		return section(ctx)
	}
	return mutex.Do(ctx, section)
}

// arrive leaves a witness in Redis, which detects overlaps without a clock: a process that enters should find no other name. On re-entries
// Redis counts the depth.
func (c *clerk) arrive(ctx context.Context, m *rlock.Mutex, s *span) (err error) {
	if s.Depth == 1 {
		s.Met, err = c.ask(ctx, c.rdb.B().Getset().Key(c.key("inside", s.Lock)).Value(s.name()).Build())
		return err
	}
	n, err := m.HoldCount(ctx)
	if err == nil && n != s.Depth && !c.Cheats {
		err = fmt.Errorf("re-entry: Redis counts %d holds, want %d", n, s.Depth)
	}
	return err
}

// leave checks that the witness is still its own.
func (c *clerk) leave(ctx context.Context, s *span) error {
	if s.Depth > 1 {
		return nil
	}
	found, err := c.ask(ctx, c.rdb.B().Getdel().Key(c.key("inside", s.Lock)).Build())
	if found != "" && found != s.name() {
		s.Met = found
	}
	return err
}

// pause sleeps for a random time.
func pause(minMillis, maxMillis int) {
	time.Sleep(time.Duration(minMillis)*time.Millisecond + rand.N(time.Duration(maxMillis-minMillis)*time.Millisecond))
}
