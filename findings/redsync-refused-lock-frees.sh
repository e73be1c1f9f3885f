#!/usr/bin/env bash
# redsync: a Lock that is refused removes the lock that it was refused for
#
# Run:      redsync 4.18.1 with go-redis 9.23.0 (Go), Redis 8.2.3: Mutexes of one name, with WithGenValueFunc for a value that says whose it
#           is, the same for all; Lock of the first, of the second, twice, and of a third. bsm/redislock 0.9.4 with one Token.
# Guess:    the second is refused, or, as with bsm/redislock, enters as the same owner. The first keeps the lock either way.
# Seen:     it is refused, and then tidies up what it may have set, by value: that is the first's key. Its next try, or anybody's, has the
#           lock beside the first. With the default tries that is the same call of Lock, half a second later.
# Matters:  a host name or worker id as value, to see in Redis who has a lock, is enough when two goroutines of it want one. The value has
#           to be new for each Lock.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
go_modules github.com/go-redsync/redsync/v4@v4.18.1 github.com/redis/go-redis/v9@v9.23.0 github.com/bsm/redislock@v0.9.4
cat >main.go <<'END'
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func main() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]})
	locks := redsync.New(goredis.NewPool(client))
	mutex := func(options ...redsync.Option) *redsync.Mutex {
		worker := func() (string, error) { return "worker-1", nil }
		return locks.NewMutex("redsync", append(options, redsync.WithExpiry(time.Minute), redsync.WithGenValueFunc(worker))...)
	}
	report := func(name string, err error) {
		var taken *redsync.ErrTaken
		left := client.Exists(ctx, "redsync").Val()
		fmt.Printf("%s: got it: %t, taken: %t, locks in Redis: %d\n", name, err == nil, errors.As(err, &taken), left)
	}
	report("first", mutex().Lock())
	report("second, one try", mutex(redsync.WithTries(1)).Lock())
	report("second again", mutex(redsync.WithTries(1)).Lock())
	report("third, default tries", mutex().Lock())

	for _, name := range []string{"first", "second"} {
		_, err := redislock.New(client).Obtain(ctx, "redislock", time.Minute, &redislock.Options{Token: "worker-1"})
		fmt.Printf("bsm/redislock, %s: got it: %t\n", name, err == nil)
	}
}
END
expect go run . "$port" <<'END'
first: got it: true, taken: false, locks in Redis: 1
second, one try: got it: false, taken: true, locks in Redis: 0
second again: got it: true, taken: false, locks in Redis: 1
third, default tries: got it: true, taken: false, locks in Redis: 1
bsm/redislock, first: got it: true
bsm/redislock, second: got it: true
END
