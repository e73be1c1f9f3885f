// Wallclock increments a counter in a file, outside Redis, under a lock while its wall clock is wrong.
// time_wall_test.go builds it with a patched time package that reads the offset from the environment.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

// run prints the wall-clock time at the start, and at the end how often it jumped against the monotonic clock.
// The section outlasts the watchdog time, so the hold depends on renewals.
func run(addr, name, counter string) error {
	const watchdog = 900 * time.Millisecond
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
	if err != nil {
		return err
	}
	defer rdb.Close()
	c, err := rlock.New(rdb, rlock.Options{WatchdogTimeout: watchdog})
	if err != nil {
		return err
	}
	defer c.Close()
	began, jumps := time.Now(), 0
	fmt.Println(began.Unix())
	err = c.Mutex(name).Do(context.Background(), func(ctx context.Context) error {
		text, err := os.ReadFile(counter)
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(text))
		if err != nil {
			return err
		}
		last := time.Now()
		for range 30 {
			<-time.After(watchdog / 20)
			now := time.Now()
			if d := now.Round(0).Sub(last.Round(0)) - now.Sub(last); d.Abs() > time.Hour {
				jumps++
			}
			last = now
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return os.WriteFile(counter, []byte(strconv.Itoa(n+1)), 0o600)
	})
	fmt.Println(jumps)
	return err
}
