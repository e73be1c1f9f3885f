#!/usr/bin/env bash
# goose: a locker's patience is for its whole life; after a few waits that ended well, it never waits again
#
# Run:      the locker for PostgreSQL's advisory locks of goose 3.27.3 with lib/pq 1.12.3 (Go), PostgreSQL 16.2 (in pgserver 0.1.4 of PyPI),
#           WithLockTimeout(1, 6), which looks once a second, six times. Another session holds the lock for two and a half seconds, five
#           times. A locker made for each time asks for it meanwhile, and then one locker for all five.
# Guess:    no difference: all ten get the lock after three seconds at most. It "sets the max duration to wait for the lock", and what has
#           been unlocked is as new.
# Seen:     one locker gets it twice or three times, and then gives up at once. The six looks are counted over all its life, also in waits
#           that ended well, and never start again.
# Matters:  whoever migrates a hundred schemas beside other processes, with one locker as one has one pool, sees failures after the first
#           dozens, each without a wait; a higher limit only comes later. What counts tries has to be made anew for each call.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_postgres service
go_modules github.com/pressly/goose/v3@v3.27.3 github.com/lib/pq@v1.12.3
cat >main.go <<'END'
package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"time"

	_ "github.com/lib/pq"
	"github.com/pressly/goose/v3/lock"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func locker() lock.SessionLocker {
	l, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 6))
	must(err)
	return l
}

func main() {
	ctx := context.Background()
	db, err := sql.Open("postgres", "postgres://service@127.0.0.1:"+os.Args[1]+"/postgres?sslmode=disable")
	must(err)
	for tries := 0; db.Ping() != nil; tries++ {
		if tries == 300 {
			panic("no server")
		}
		time.Sleep(100 * time.Millisecond)
	}
	connection := func() *sql.Conn {
		c, err := db.Conn(ctx)
		must(err)
		return c
	}
	one, other := connection(), connection()
	for _, shared := range []bool{false, true} {
		shares := locker()
		got, last := 0, time.Duration(0)
		for range 5 {
			holder, waiter := locker(), locker()
			if shared {
				waiter = shares
			}
			must(holder.SessionLock(ctx, one))
			released := make(chan error)
			go func() {
				time.Sleep(2500 * time.Millisecond)
				released <- holder.SessionUnlock(ctx, one)
			}()
			start := time.Now()
			err := waiter.SessionLock(ctx, other)
			last = time.Since(start)
			must(<-released)
			if err == nil {
				got++
				must(waiter.SessionUnlock(ctx, other))
			}
		}
		fmt.Printf("one locker for all: %v: all five got it: %v, the last one has waited: %v\n", shared, got == 5, last > time.Second)
	}
}
END
expect go run . "$port" <<'END'
one locker for all: false: all five got it: true, the last one has waited: true
one locker for all: true: all five got it: false, the last one has waited: false
END
