#!/usr/bin/env bash
# go-zero: a RedisLock as the constructor returns it is gone after half a second
#
# Run:      go-zero 1.10.3 (Go), Redis 8.2.3: NewRedisLock(store, name).Acquire(), another one asks at once and after a second, and the
#           first one releases. The same with SetExpire(10).
# Guess:    without an expiry the lock stays until its Release, or the constructor's default is some seconds. Acquire has no parameter for it.
# Seen:     Acquire sets the expiry to the object's seconds, which are none, and 500 ms that are meant as a tolerance. Acquire's answer and
#           its error are the same with both.
# Matters:  each section that takes longer than half a second is not alone, and Release, which says false then, is what a caller defers
#           and does not read. A lease that nobody chose should be an error, or long.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
go_modules github.com/zeromicro/go-zero@v1.10.3
cat >main.go <<'END'
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/zeromicro/go-zero/core/stores/redis"
)

func main() {
	store := redis.MustNewRedis(redis.RedisConf{Host: "127.0.0.1:" + os.Args[1], Type: redis.NodeType})
	for _, seconds := range []int{0, 10} {
		name := fmt.Sprintf("SetExpire(%d)", seconds)
		lock, other := redis.NewRedisLock(store, name), redis.NewRedisLock(store, name)
		if seconds == 0 {
			name = "as constructed"
		} else {
			lock.SetExpire(seconds)
			other.SetExpire(seconds)
		}
		report := func(what string, ok bool, err error) {
			fmt.Printf("%s: %s: %t, %v\n", name, what, ok, err)
		}
		ok, err := lock.Acquire()
		report("Acquire", ok, err)
		ok, err = other.Acquire()
		report("another's Acquire", ok, err)
		time.Sleep(time.Second)
		ok, err = other.Acquire()
		report("another's Acquire a second later", ok, err)
		ok, err = lock.Release()
		report("Release", ok, err)
	}
}
END
expect go run . "$port" <<'END'
as constructed: Acquire: true, <nil>
as constructed: another's Acquire: false, <nil>
as constructed: another's Acquire a second later: true, <nil>
as constructed: Release: false, <nil>
SetExpire(10): Acquire: true, <nil>
SetExpire(10): another's Acquire: false, <nil>
SetExpire(10): another's Acquire a second later: false, <nil>
SetExpire(10): Release: true, <nil>
END
