#!/usr/bin/env bash
# rueidislock: after one error of Redis, WithContext waits for a lock that is free
#
# Run:      rueidislock of rueidis 1.0.79 (Go), Redis 8.2.3: WithContext while Redis is at its maxmemory, which is then lifted; nobody has
#           the lock.
# Guess:    it returns the error, or it tries again after a while.
# Seen:     it drops the error and waits for a message that the key has changed. The script failed before it touched the key, so Redis has
#           nothing to tell: WithContext sleeps until its context ends, while TryWithContext has the lock at once.
# Matters:  a moment of OOM, LOADING, READONLY or NOPERM puts a worker to sleep for good, without a line in a log. WithContext needs a
#           deadline, and a loop around it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
go_modules github.com/redis/rueidis@v1.0.79
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

func main() {
	background := context.Background()
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{"127.0.0.1:" + os.Args[1]}},
		TryNextAfter: time.Second, // plenty
	})
	if err != nil {
		panic(err)
	}
	admin, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"127.0.0.1:" + os.Args[1]}})
	if err != nil {
		panic(err)
	}
	maxmemory := func(limit string) {
		if err := admin.Do(background, admin.B().ConfigSet().ParameterValue().ParameterValue("maxmemory", limit).Build()).Error(); err != nil {
			panic(err)
		}
	}
	failed := func() bool {
		stats, err := admin.Do(background, admin.B().Info().Section("errorstats").Build()).ToString()
		return err == nil && len(stats) > 20
	}

	maxmemory("1")
	ctx, cancel := context.WithTimeout(background, 10*time.Second)
	defer cancel()
	waited := make(chan error)
	go func() {
		_, _, err := locker.WithContext(ctx, "order")
		waited <- err
	}()
	for !failed() {
	}
	time.Sleep(time.Second) // for the rest of that try
	maxmemory("0")
	for range 3 {
		time.Sleep(time.Second)
		_, unlock, err := locker.TryWithContext(background, "other")
		fmt.Println("another name:", err)
		if err == nil {
			unlock()
		}
	}
	fmt.Println("WithContext after 10 s:", <-waited)
	_, _, err = locker.TryWithContext(background, "order")
	fmt.Println("TryWithContext:", err)
}
END
expect go run . "$port" <<'END'
another name: <nil>
another name: <nil>
another name: <nil>
WithContext after 10 s: context deadline exceeded
TryWithContext: <nil>
END
