#!/usr/bin/env bash
# gocron-redis-lock: without WithTries(1), every process runs the job, one after the other
#
# Run:      gocron 2.21.2 with gocron-redis-lock 2.2.1 (Go), Redis 8.2.3: three schedulers, as of three processes, run a job of one name and
#           200 ms at once, with NewRedisLocker as it is and with WithTries(1).
# Guess:    one of them runs it, as gocron says of a Locker: the others skip the run. Options are for expiry and retries after errors.
# Seen:     a taken lock is an error to retry like any other: the others ask up to 32 times, for some four seconds, get the lock after the
#           first one's run and run the job then.
# Matters:  a job that takes less than that is done by each process, and never at the same time: nothing fails. One that takes longer is
#           done once, so a slow test passes. "One at a time" and "once" are different locks.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
go_modules github.com/go-co-op/gocron/v2@v2.21.2 github.com/go-co-op/gocron-redis-lock/v2@v2.2.1 github.com/redis/go-redis/v9@v9.23.0 \
	github.com/go-redsync/redsync/v4@v4.18.1
cat >main.go <<'END'
package main

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	redislock "github.com/go-co-op/gocron-redis-lock/v2"
	"github.com/go-co-op/gocron/v2"
	"github.com/go-redsync/redsync/v4"
	"github.com/redis/go-redis/v9"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	run := func(job string, options ...redsync.Option) {
		var ran, running, most atomic.Int32
		task := func() {
			most.Store(max(most.Load(), running.Add(1)))
			ran.Add(1)
			time.Sleep(200 * time.Millisecond)
			running.Add(-1)
		}
		at := gocron.OneTimeJob(gocron.OneTimeJobStartDateTime(time.Now().Add(time.Second)))
		for range 3 {
			client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]})
			locker := must(redislock.NewRedisLocker(client, options...))
			scheduler := must(gocron.NewScheduler(gocron.WithDistributedLocker(locker)))
			must(scheduler.NewJob(at, gocron.NewTask(task), gocron.WithName(job)))
			scheduler.Start()
		}
		time.Sleep(7 * time.Second)
		fmt.Printf("%s: ran: %d, at most at a time: %d\n", job, ran.Load(), most.Load())
	}
	run("as it is")
	run("WithTries(1)", redislock.WithTries(1))
}
END
expect go run . "$port" <<'END'
as it is: ran: 3, at most at a time: 1
WithTries(1): ran: 1, at most at a time: 1
END
