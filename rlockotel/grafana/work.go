package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// processes is the number of Clients, which act like separate processes.
const processes = 3

// work keeps locks of several groups busy until ctx is done:
//
//	order   many names, so mostly free; charged inside, which re-enters
//	stock   few names and many who want them, some of whom do not wait for long
//	report  one has it for long, the others try and go
//	import  an operator forces it open now and then
//
// Times are in beats: the watchdog time is 30 of them.
func work(ctx context.Context, rdb rueidis.Client, trace *rlock.Trace, beat time.Duration) error {
	var all sync.WaitGroup
	defer all.Wait()
	for range processes {
		c, err := rlock.New(rdb, rlock.Options{Trace: trace, WatchdogTimeout: 30 * beat})
		if err != nil {
			return err
		}
		loop := func(f func() error) {
			all.Go(func() { // ends with ctx
				for ctx.Err() == nil {
					if err := f(); errors.Is(err, rlock.ErrUnreachable) {
						pause(ctx, beat) // Redis is away
					}
				}
			})
		}
		loop(func() error {
			pause(ctx, spread(beat/50))
			m := c.Mutex(fmt.Sprint("order:", rand.IntN(1000)))
			return m.Do(ctx, func(ctx context.Context) error {
				pause(ctx, spread(beat/500))
				return m.Do(ctx, func(context.Context) error { return nil })
			})
		})
		for range 4 {
			loop(func() error {
				pause(ctx, spread(beat/50))
				wait, cancel := context.WithTimeout(ctx, beat/10)
				defer cancel()
				return c.Mutex(fmt.Sprint("stock:", rand.IntN(2))).Do(wait, func(ctx context.Context) error {
					pause(ctx, spread(beat/100))
					return nil
				})
			})
		}
		loop(func() error {
			err := c.Mutex("report:daily").TryDo(ctx, 0, func(ctx context.Context) error {
				pause(ctx, 25*beat)
				return nil
			})
			pause(ctx, spread(beat))
			return err
		})
		loop(func() error {
			return c.Mutex("import:prices").Do(ctx, func(ctx context.Context) error {
				pause(ctx, 40*beat)
				return nil
			})
		})
		context.AfterFunc(ctx, c.Close)
	}
	operator, err := rlock.New(rdb, rlock.Options{})
	if err != nil {
		return err
	}
	defer operator.Close()
	for pause(ctx, 45*beat) {
		_, _ = operator.Mutex("import:prices").ForceUnlock(ctx)
	}
	return nil
}

// spread is d give or take a half.
func spread(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// pause waits, and reports false if ctx ended it.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
