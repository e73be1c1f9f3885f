#!/usr/bin/env bash
# gocron: jobs that one function makes share one distributed lock, and all but one are skipped
#
# Run:      gocron 2.21.2 (Go): a job for each of three tenants, by a function that returns the task, with no Locker and with one made of
#           bsm/redislock 0.9.4 on Redis 8.2.3; one process.
# Guess:    the Locker is for several processes. In one, three jobs, three tasks, three ids: all three run, as without it.
# Seen:     a job without a name has that of its Go function, which all closures from one place in the source share, and that is the lock's
#           key. One tenant's job runs. The others are skipped, without an error.
# Matters:  who adds a second process, and therefore a Locker, loses jobs. Each needs WithName. Renaming a function changes its key, so
#           during a deployment old and new run the job side by side.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
go_modules github.com/go-co-op/gocron/v2@v2.21.2 github.com/bsm/redislock@v0.9.4 github.com/redis/go-redis/v9@v9.23.0
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-co-op/gocron/v2"
	"github.com/redis/go-redis/v9"
)

type locker struct{ *redislock.Client }

func (l locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lock, err := l.Obtain(ctx, key, time.Minute, nil)
	return unlocker{lock}, err
}

type unlocker struct{ *redislock.Lock }

func (u unlocker) Unlock(ctx context.Context) error { return u.Release(ctx) }

var ran atomic.Int32

func report(tenant string) func() {
	return func() {
		ran.Add(1)
		time.Sleep(2 * time.Second)
	}
}

func main() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]})
	withLocker := gocron.WithDistributedLocker(locker{redislock.New(client)})
	run := func(how string, named bool, options ...gocron.SchedulerOption) {
		ran.Store(0)
		scheduler, err := gocron.NewScheduler(options...)
		if err != nil {
			panic(err)
		}
		for _, tenant := range []string{"a", "b", "c"} {
			var name []gocron.JobOption
			if named {
				name = append(name, gocron.WithName(tenant))
			}
			once := gocron.OneTimeJob(gocron.OneTimeJobStartImmediately())
			if _, err := scheduler.NewJob(once, gocron.NewTask(report(tenant)), name...); err != nil {
				panic(err)
			}
		}
		scheduler.Start()
		time.Sleep(time.Second)
		keys := client.Keys(context.Background(), "*").Val()
		time.Sleep(2 * time.Second)
		if err := scheduler.Shutdown(); err != nil {
			panic(err)
		}
		fmt.Println(how, "ran:", ran.Load(), "locks:", len(keys))
		if len(keys) == 1 {
			fmt.Println("  named after the function:", strings.Contains(keys[0], "report"))
		}
	}
	run("no locker:", false)
	run("a locker:", false, withLocker)
	run("a locker and names:", true, withLocker)
}
END
expect go run . "$port" <<'END'
no locker: ran: 3 locks: 0
a locker: ran: 1 locks: 1
  named after the function: true
a locker and names: ran: 3 locks: 3
END
