#!/usr/bin/env bash
# redis_rate: of ten in ten seconds, AllowAtMost gives six to somebody who takes what there is every 1.6 s
#
# Run:      redis_rate 10.0.1 with go-redis 9.23.0 (Go), Redis 8.2.3: a limit of ten in ten seconds is used up, and then asked every 1.6 s,
#           ten times: AllowAtMost for ten, and Allow, on a key of its own, until it says no.
# Guess:    some sixteen of each, one in a second: AllowAtMost "returns number of allowed events that is less than or equal to n", and so is
#           a quicker way to ask until there is a no.
# Seen:     after 1.6 s there are 1.6. The script takes all of that off, and the reply, an integer in Redis, says one. The rest is lost
#           with each call.
# Matters:  whoever takes batches with it, as a worker that polls does, stays below the limit, at little more than half of it in the worst
#           case. What is taken and what is told must be one number, and Redis cuts the fraction of a number that a script returns.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
go_modules github.com/go-redis/redis_rate/v10@v10.0.1 github.com/redis/go-redis/v9@v9.23.0
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
)

func main() {
	ctx := context.Background()
	limiter := redis_rate.NewLimiter(redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]}))
	limit := redis_rate.Limit{Rate: 10, Period: 10 * time.Second, Burst: 10}
	allowed := func(result *redis_rate.Result, err error) int {
		if err != nil {
			panic(err)
		}
		return result.Allowed
	}
	fmt.Println("used up:", allowed(limiter.AllowN(ctx, "batches", limit, 10)), allowed(limiter.AllowN(ctx, "one by one", limit, 10)))
	var batches, oneByOne int
	begin := time.Now()
	for range 10 {
		time.Sleep(1600 * time.Millisecond)
		batches += allowed(limiter.AllowAtMost(ctx, "batches", limit, 10))
		for allowed(limiter.Allow(ctx, "one by one", limit)) == 1 {
			oneByOne++
		}
	}
	due := int(time.Since(begin).Seconds())
	fmt.Println("one by one, at least 85% of what is due:", oneByOne >= due*85/100)
	fmt.Println("batches, at most 75% of what is due:", batches <= due*75/100)
}
END
expect go run . "$port" <<'END'
used up: 10 10
one by one, at least 85% of what is due: true
batches, at most 75% of what is due: true
END
