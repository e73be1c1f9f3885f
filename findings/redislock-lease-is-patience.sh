#!/usr/bin/env bash
# bsm/redislock: without a deadline, Obtain waits for as long as the lease that it wants, and then does not return ErrNotObtained
#
# Run:      bsm/redislock 0.9.4 with go-redis 9.23.0 (Go), Redis 8.2.3: somebody has the lock for a minute, and releases it after two
#           seconds. Obtain with LinearBackoff, which retries without end, for a lease of half a second and of ten, with and without a
#           deadline in its ctx; and once without a RetryStrategy.
# Guess:    how long one waits and how long one may have the lock are two things: with context.Background() each of them waits the two
#           seconds. Whoever does not get a lock is told ErrNotObtained.
# Seen:     a ctx without a deadline is given one: ttl from now. A lease of half a second waits half a second, and the error is
#           context.DeadlineExceeded, which the caller's ctx does not have.
# Matters:  whoever takes a short lease and renews it, so that a crash costs little, gives up on locks that others keep longer. And a busy
#           lock passes "if err == redislock.ErrNotObtained" as if Redis had failed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
go_modules github.com/bsm/redislock@v0.9.4 github.com/redis/go-redis/v9@v9.23.0
cat >main.go <<'END'
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

func main() {
	background := context.Background()
	deadline, cancel := context.WithTimeout(background, time.Minute)
	defer cancel()
	locks := redislock.New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]}))
	obtain := func(how string, ctx context.Context, ttl time.Duration, retry redislock.RetryStrategy) {
		held, err := locks.Obtain(background, how, time.Minute, nil)
		if err != nil {
			panic(err)
		}
		time.AfterFunc(2*time.Second, func() { held.Release(background) })
		_, err = locks.Obtain(ctx, how, ttl, &redislock.Options{RetryStrategy: retry})
		fmt.Printf("%s: got it: %t, ErrNotObtained: %t, DeadlineExceeded: %t\n", how, err == nil,
			errors.Is(err, redislock.ErrNotObtained), errors.Is(err, context.DeadlineExceeded))
	}
	obtain("0.5 s, one try", background, 500*time.Millisecond, redislock.NoRetry())
	obtain("0.5 s", background, 500*time.Millisecond, redislock.LinearBackoff(50*time.Millisecond))
	obtain("0.5 s, with a deadline", deadline, 500*time.Millisecond, redislock.LinearBackoff(50*time.Millisecond))
	obtain("10 s", background, 10*time.Second, redislock.LinearBackoff(50*time.Millisecond))
}
END
expect go run . "$port" <<'END'
0.5 s, one try: got it: false, ErrNotObtained: true, DeadlineExceeded: false
0.5 s: got it: false, ErrNotObtained: false, DeadlineExceeded: true
0.5 s, with a deadline: got it: true, ErrNotObtained: false, DeadlineExceeded: false
10 s: got it: true, ErrNotObtained: false, DeadlineExceeded: false
END
