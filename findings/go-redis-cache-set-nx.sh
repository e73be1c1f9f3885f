#!/usr/bin/env bash
# go-redis/cache: Set with SetNX returns no error to anybody, and whoever did not get the key finds his own value there
#
# Run:      go-redis/cache 9.0.0 with go-redis 9.23.0 (Go), Redis 8.2.3: two caches, each with a local cache, take a lock by an Item with
#           SetNX: true and a minute. Then each reads who has it. A third one renews a lock that is gone, with SetXX: true, and reads it.
#           go-redis itself does the same.
# Guess:    an error for the second: Set returns nothing else, and the field "only sets the key if it does not already exist".
# Seen:     SETNX's answer is dropped, so all of them get nil. Before it is asked, the value goes into the local cache: the second reads
#           that it has the lock itself, for as long as that cache keeps it. SetXX is the same.
# Matters:  neither the error nor a look at the owner afterwards tells who is in. A conditional write has to say what became of it, and what
#           is kept at hand has to be written after the answer.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
go_modules github.com/go-redis/cache/v9@v9.0.0 github.com/redis/go-redis/v9@v9.23.0
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/go-redis/cache/v9"
	"github.com/redis/go-redis/v9"
)

func main() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]})
	set := func(me string, item cache.Item) {
		mine := cache.New(&cache.Options{Redis: client, LocalCache: cache.NewTinyLFU(1000, time.Minute)})
		item.TTL, item.Value = time.Minute, me
		err := mine.Set(&item)
		var owner string
		if err := mine.Get(ctx, item.Key, &owner); err != nil {
			panic(err)
		}
		inRedis := client.Get(ctx, item.Key).Val()
		fmt.Printf("%s: Set: %v, Get: %q, in Redis: %q\n", me, err, owner, inRedis)
	}
	set("one", cache.Item{Key: "lock", SetNX: true})
	set("two", cache.Item{Key: "lock", SetNX: true})
	set("three", cache.Item{Key: "gone", SetXX: true})
	fmt.Println("go-redis, SetNX:", client.SetNX(ctx, "lock", "four", time.Minute).Val())
	fmt.Println("go-redis, SetXX:", client.SetXX(ctx, "gone", "four", time.Minute).Val())
}
END
expect go run . "$port" <<'END'
one: Set: <nil>, Get: "one", in Redis: "one"
two: Set: <nil>, Get: "two", in Redis: "one"
three: Set: <nil>, Get: "three", in Redis: ""
go-redis, SetNX: false
go-redis, SetXX: false
END
