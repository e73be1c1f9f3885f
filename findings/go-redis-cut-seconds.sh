#!/usr/bin/env bash
# go-redis: a lease of 1.9 s, renewed by Expire for 1.9 s, ends after one
#
# Run:      go-redis 9.23.0 (Go), Redis 8.2.3: 1.9 s as the time of Set, SetNX, GetEx, PExpire, Expire and ExpireXX, and of BLPop with
#           nothing to come.
# Guess:    1.9 s everywhere. Each takes a time.Duration, Set sends PX where seconds will not do, and Redis' BLPOP takes fractions.
# Seen:     Expire and BLPop drop the fraction, without a word above one second.
# Matters:  the first renewal halves the lease, so that renewing each second is too late. PExpire is exact.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
go_modules github.com/redis/go-redis/v9@v9.23.0
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

func main() {
	const lease = 1900 * time.Millisecond
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]})
	report := func(call string, err error) {
		fmt.Printf("%s: %v, more than a second: %t\n", call, err, client.PTTL(ctx, "lock").Val() > time.Second)
	}
	report("SetNX", client.SetNX(ctx, "lock", "me", lease).Err())
	report("Set", client.Set(ctx, "lock", "me", lease).Err())
	report("GetEx", client.GetEx(ctx, "lock", lease).Err())
	report("PExpire", client.PExpire(ctx, "lock", lease).Err())
	report("Expire", client.Expire(ctx, "lock", lease).Err())
	client.Set(ctx, "lock", "me", lease)
	report("ExpireXX", client.ExpireXX(ctx, "lock", lease).Err())

	start := time.Now()
	err := client.BLPop(ctx, lease, "list").Err()
	fmt.Printf("BLPop: %v, more than 1.7 s: %t\n", err, time.Since(start) > 1700*time.Millisecond)
}
END
expect go run . "$port" <<'END'
SetNX: <nil>, more than a second: true
Set: <nil>, more than a second: true
GetEx: <nil>, more than a second: true
PExpire: <nil>, more than a second: true
Expire: <nil>, more than a second: false
ExpireXX: <nil>, more than a second: false
BLPop: redis: nil, more than 1.7 s: false
END
