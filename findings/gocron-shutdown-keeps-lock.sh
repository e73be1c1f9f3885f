#!/usr/bin/env bash
# gocron: Shutdown waits for the running job, and then its lock stays in Redis
#
# Run:      gocron 2.21.2 (Go) with a Locker made of bsm/redislock 0.9.4, Redis 8.2.3: a job that takes a second, with and without Shutdown
#           in the middle of it.
# Guess:    a Shutdown that lets the job finish leaves what the job's end leaves: no lock.
# Seen:     Shutdown cancels the job's context, waits for the job, and calls the Locker's Unlock with that cancelled context. A client that
#           heeds a context does not even send the command, and gocron drops the error.
# Matters:  each deployment in the middle of a job blocks that job everywhere until the lease ends. A Locker has to unlock under
#           context.WithoutCancel and a time-out of its own.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
go_modules github.com/go-co-op/gocron/v2@v2.21.2 github.com/bsm/redislock@v0.9.4 github.com/redis/go-redis/v9@v9.23.0
cat >main.go <<'END'
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

type locker struct{ *redislock.Client }

func (l locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lock, err := l.Obtain(ctx, key, time.Hour, nil)
	return unlocker{lock}, err
}

type unlocker struct{ lock *redislock.Lock }

func (u unlocker) Unlock(ctx context.Context) error {
	err := u.lock.Release(ctx)
	fmt.Println("  Unlock of a cancelled context:", errors.Is(err, context.Canceled))
	return err
}

func main() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]})
	for _, early := range []bool{false, true} {
		fmt.Println("Shutdown in the middle of the job:", early)
		scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker{redislock.New(client)}))
		if err != nil {
			panic(err)
		}
		started, ended, completed := make(chan bool), make(chan bool, 1), make(chan bool, 1)
		_, err = scheduler.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), gocron.NewTask(func() {
			close(started)
			time.Sleep(time.Second)
			ended <- true
		}), gocron.WithName("report"), gocron.WithEventListeners(gocron.AfterJobRuns(func(uuid.UUID, string) { completed <- true })))
		if err != nil {
			panic(err)
		}
		scheduler.Start()
		<-started
		if !early {
			<-completed
			for client.Exists(context.Background(), "report").Val() != 0 {
			}
		}
		fmt.Println("  Shutdown's error:", scheduler.Shutdown())
		select {
		case <-ended:
			fmt.Println("  the job has run to its end: true")
		default:
			fmt.Println("  the job has run to its end: false")
		}
		fmt.Println("  locks left:", client.Exists(context.Background(), "report").Val())
	}
}
END
expect go run . "$port" <<'END'
Shutdown in the middle of the job: false
  Unlock of a cancelled context: false
  Shutdown's error: <nil>
  the job has run to its end: true
  locks left: 0
Shutdown in the middle of the job: true
  Unlock of a cancelled context: true
  Shutdown's error: <nil>
  the job has run to its end: true
  locks left: 1
END
