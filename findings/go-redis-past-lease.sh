#!/usr/bin/env bash
# go-redis: SetArgs and Set with a lease that is over take the lock for ever
#
# Run:      go-redis 9.23.0 (Go), Redis 8.2.3: SetNX, SetXX, SetArgs with Mode NX, Set, GetEx and PExpire with a time of -1 s, as time.Until
#           gives it for a deadline that has passed.
# Guess:    an error, which Redis has for it, or a key that is gone at once.
# Seen:     SetNX and SetXX send it, and fail. SetArgs, Set and GetEx leave out what is not positive: the command succeeds, and a key that
#           is set has no expiry.
# Matters:  a lease worked out from a deadline, a moment too late, becomes one without an end, and OK is the answer. Whoever passes a
#           computed time has to check it.
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
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]})
	const lease = -time.Second
	report := func(call string, err error) {
		switch client.TTL(ctx, "lock").Val() {
		case -2:
			fmt.Println(call, "error:", err, "- no key")
		case -1:
			fmt.Println(call, "error:", err, "- for ever")
		default:
			fmt.Println(call, "error:", err, "- expires")
		}
		client.Del(ctx, "lock")
	}
	report("SetNX", client.SetNX(ctx, "lock", "me", lease).Err())
	report("SetArgs", client.SetArgs(ctx, "lock", "me", redis.SetArgs{Mode: "NX", TTL: lease}).Err())
	report("Set", client.Set(ctx, "lock", "me", lease).Err())
	client.Set(ctx, "lock", "me", time.Minute)
	report("SetXX of a minute's lease", client.SetXX(ctx, "lock", "me", lease).Err())
	client.Set(ctx, "lock", "me", time.Minute)
	report("Set of a minute's lease", client.Set(ctx, "lock", "me", lease).Err())
	client.Set(ctx, "lock", "me", time.Minute)
	report("GetEx of a minute's lease", client.GetEx(ctx, "lock", lease).Err())
	client.Set(ctx, "lock", "me", time.Minute)
	report("PExpire of a minute's lease", client.PExpire(ctx, "lock", lease).Err())
}
END
expect go run . "$port" <<'END'
SetNX error: ERR invalid expire time in 'set' command - no key
SetArgs error: <nil> - for ever
Set error: <nil> - for ever
SetXX of a minute's lease error: ERR invalid expire time in 'set' command - expires
Set of a minute's lease error: <nil> - for ever
GetEx of a minute's lease error: <nil> - expires
PExpire of a minute's lease error: <nil> - no key
END
