#!/usr/bin/env bash
# bsm/redislock: with tokens of one's own, worker-1 takes the lock that worker-12 holds
#
# Run:      bsm/redislock 0.9.4 with go-redis 9.23.0 (Go), Redis 8.2.3: Obtain with the option Token, "a unique value that is used to
#           identify the lock", here the worker's name. The twelfth has the lock for a minute, and the first to the eleventh ask for it,
#           without retries. The names end with "-1" to "-12", and then with "-01" to "-12".
# Guess:    eleven are refused with ErrNotObtained: the names are unique. At most a worker could get a lock again that it has itself.
# Seen:     worker-1 gets it, and the Release of worker-12 says that it does not have it. A worker may get its own lock again, and which one
#           is its own is compared for as many bytes as its token has, since metadata follow it: whoever's name begins so is itself.
# Matters:  names of hosts and pods with a number are tokens that one can read in Redis, and nothing is wrong until there are ten of them.
#           What is put together for a comparison needs a length or an end in between.
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
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]})
	locker := redislock.New(client)
	for _, format := range []string{"worker-%d", "worker-%02d"} {
		key := "report of " + format
		obtain := func(worker int) (*redislock.Lock, error) {
			return locker.Obtain(ctx, key, time.Minute, &redislock.Options{Token: fmt.Sprintf(format, worker)})
		}
		held, err := obtain(12)
		if err != nil {
			panic(err)
		}
		refused := 0
		for worker := 1; worker <= 11; worker++ {
			switch lock, err := obtain(worker); {
			case err == nil:
				fmt.Println("obtained by", lock.Token())
			case errors.Is(err, redislock.ErrNotObtained):
				refused++
			default:
				panic(err)
			}
		}
		fmt.Printf("%s: refused: %d, the holder's Release: %v\n", format, refused, held.Release(ctx))
	}
}
END
expect go run . "$port" <<'END'
obtained by worker-1
worker-%d: refused: 10, the holder's Release: redislock: lock not held
worker-%02d: refused: 11, the holder's Release: <nil>
END
