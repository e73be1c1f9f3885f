#!/usr/bin/env bash
# cheerego/go-redisson: an inner unlock sets a lease of 347 days
#
# Run:      github.com/cheerego/go-redisson 0.0.6 (Go), Redis 8.2.3: its re-entrant lock twice, one unlock, and the time that is left.
# Guess:    30 s again, as Redisson's partial unlock has it.
# Seen:     the script wants milliseconds and is given the time.Duration of 30 s itself, which is its nanoseconds: 3e10 ms.
# Matters:  if that process dies before the outer unlock, the lock is taken for most of a year. In tests, where the outer unlock follows,
#           all is well. A Duration passed as an argument of a script needs a unit: the compiler accepts it, and so does Redis.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
go_modules github.com/cheerego/go-redisson@v0.0.6
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	godisson "github.com/cheerego/go-redisson"
	"github.com/go-redis/redis/v8"
)

func main() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]})
	lock := godisson.NewGodisson(client).NewRLock("order")
	days := func() int { return int(client.PTTL(context.Background(), "order").Val() / (24 * time.Hour)) }
	if err := lock.Lock(); err != nil {
		panic(err)
	}
	if err := lock.Lock(); err != nil {
		panic(err)
	}
	fmt.Println("locked twice, days left:", days())
	if _, err := lock.Unlock(); err != nil {
		panic(err)
	}
	fmt.Println("unlocked once, days left:", days())
}
END
expect go run . "$port" <<'END'
locked twice, days left: 0
unlocked once, days left: 347
END
