#!/usr/bin/env bash
# pglock: whoever waits for a lock for at most two seconds, and gets it at once, loses it when the two seconds are over
#
# Run:      cirello.io/pglock 1.9.0 with lib/pq 1.12.3 (Go), PostgreSQL 16.2 (in pgserver 0.1.4 of PyPI): a lease of three seconds,
#           a heartbeat each half second. A free lock is taken by Acquire, by AcquireContext with a timeout of a minute, and with one of two
#           seconds. Another client waits for it for twelve seconds.
# Guess:    the other one gets it in no case: the context is for the wait. It "returns ErrNotAcquired if the context is canceled before the
#           lock is acquired", and heartbeats go on until the lock is closed.
# Seen:     the heartbeats have the same context. When its time is over they end, and a lease later another client is let in. The holder's
#           Close says that the lock was released already, when the work is done.
# Matters:  "wait for two seconds at most" is what a timeout is there for, and defer cancel() in the function that gets the lock ends the
#           heartbeats when it returns. Go's contexts end what was begun under them; that a lock goes on after its Acquire has to be said.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_postgres service
go_modules cirello.io/pglock@v1.9.0 github.com/lib/pq@v1.12.3
cat >main.go <<'END'
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"cirello.io/pglock"
	_ "github.com/lib/pq"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	db, err := sql.Open("postgres", "postgres://service@127.0.0.1:"+os.Args[1]+"/postgres?sslmode=disable")
	must(err)
	for tries := 0; db.Ping() != nil; tries++ {
		if tries == 300 {
			panic("no server")
		}
		time.Sleep(100 * time.Millisecond)
	}
	client := func() *pglock.Client {
		c, err := pglock.New(db, pglock.WithLeaseDuration(3*time.Second), pglock.WithHeartbeatFrequency(500*time.Millisecond))
		must(err)
		return c
	}
	one, other := client(), client()
	must(one.CreateTable())
	for _, patience := range []time.Duration{0, time.Minute, 2 * time.Second} {
		ctx, cancel := context.Background(), func() {}
		if patience > 0 {
			ctx, cancel = context.WithTimeout(ctx, patience)
		}
		name := "report with " + patience.String()
		lock, err := one.AcquireContext(ctx, name)
		fmt.Printf("patience of %s: acquired: %v\n", patience, err == nil)
		waiting, stop := context.WithTimeout(context.Background(), 12*time.Second)
		_, err = other.AcquireContext(waiting, name)
		fmt.Println("  another one gets it meanwhile:", err == nil)
		stop()
		err = lock.Close()
		fmt.Println("  when the work is done, it was released already:", errors.Is(err, pglock.ErrLockAlreadyReleased))
		cancel()
	}
}
END
expect go run . "$port" <<'END'
patience of 0s: acquired: true
  another one gets it meanwhile: false
  when the work is done, it was released already: false
patience of 1m0s: acquired: true
  another one gets it meanwhile: false
  when the work is done, it was released already: false
patience of 2s: acquired: true
  another one gets it meanwhile: true
  when the work is done, it was released already: true
END
