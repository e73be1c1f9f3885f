#!/usr/bin/env bash
# redis_rate, throttled-py: a request that is larger than the whole limit is told when to come again, each time
#
# Run:      redis_rate 10.0.1 with go-redis 9.23.0 (Go), throttled-py 3.5.0 with redis-py 8.1.0 (PyPI), Redis 8.2.3, and throttled 2.15.0 (Go)
#           in memory: of a limit of ten in a second with a burst of ten, twelve are asked for at once, three times, each after the
#           RetryAfter of the one before. Then ten.
# Guess:    a no that is final: an error, or a RetryAfter that is none, as golang.org/x/time/rate says with OK() and throttled with -1.
# Seen:     "retry after 200 ms", for a limiter that nobody else has used. That is the time in which two would come back, if there were
#           room for twelve. It is told again after each wait.
# Matters:  a client who obeys RetryAfter asks five times a second, for ever, for what he never gets. What can never be had must not look
#           like what is taken at the moment.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
go_modules github.com/go-redis/redis_rate/v10@v10.0.1 github.com/redis/go-redis/v9@v9.23.0 github.com/throttled/throttled/v2@v2.15.0
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func report(name string, n int, allowed bool, retryAfter time.Duration) {
	switch {
	case allowed:
		fmt.Printf("%s, %d: yes\n", name, n)
	case retryAfter < 0:
		fmt.Printf("%s, %d: no\n", name, n)
	default:
		fmt.Printf("%s, %d: no, retry after %d ms\n", name, n, retryAfter.Round(time.Millisecond).Milliseconds())
	}
}

func main() {
	ctx := context.Background()
	limiter := redis_rate.NewLimiter(redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]}))
	for _, n := range []int{12, 12, 12, 10} {
		result := must(limiter.AllowN(ctx, "mail", redis_rate.PerSecond(10), n))
		report("redis_rate", n, result.Allowed == n, result.RetryAfter)
		time.Sleep(result.RetryAfter)
	}
	gcra := must(throttled.NewGCRARateLimiterCtx(must(memstore.NewCtx(0)), throttled.RateQuota{MaxRate: throttled.PerSec(10), MaxBurst: 9}))
	for _, n := range []int{12, 10} {
		limited, result, err := gcra.RateLimitCtx(ctx, "mail", n)
		report("throttled", n, !limited && err == nil, result.RetryAfter)
	}
}
END
python_packages throttled-py==3.5.0 redis==8.1.0
cat >main.py <<'END'
import sys
import time

from throttled import RateLimiterType, Throttled, rate_limiter, store

limiter = Throttled(
    using=RateLimiterType.GCRA.value,
    quota=rate_limiter.per_sec(10, burst=10),
    store=store.RedisStore(server=f"redis://127.0.0.1:{sys.argv[1]}/0"),
)
for cost in [12, 12, 12, 10]:
    result = limiter.limit("parcel", cost=cost)
    print(f"throttled-py, {cost}:", f"no, retry after {result.state.retry_after * 1000:.0f} ms" if result.limited else "yes")
    time.sleep(result.state.retry_after)
END

main() {
	go run . "$port"
	python3 main.py "$port"
}
expect main <<'END'
redis_rate, 12: no, retry after 200 ms
redis_rate, 12: no, retry after 200 ms
redis_rate, 12: no, retry after 200 ms
redis_rate, 10: yes
throttled, 12: no
throttled, 10: yes
throttled-py, 12: no, retry after 200 ms
throttled-py, 12: no, retry after 200 ms
throttled-py, 12: no, retry after 200 ms
throttled-py, 10: yes
END
