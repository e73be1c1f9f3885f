#!/usr/bin/env bash
# golang-migrate: whoever gave up waiting for the lock gets it later, and then nobody can migrate, nor can he
#
# Run:      golang-migrate 4.20.1 (Go), PostgreSQL 16.2 (in pgserver 0.1.4 of PyPI): one instance migrates for five seconds. A second one
#           asks meanwhile, with a LockTimeout of a minute, or of a second. When the first one is done, both ask again.
# Guess:    ErrLockTimeout means that one has no lock. Once the first is done, both can go on: "no change" for the second, and the next
#           migration for the first.
# Seen:     it is so with a minute. What times out is the wait for the answer: SELECT pg_advisory_lock goes on in the background, and
#           gets the lock when the first is done. The second is then told that it has a lock already, and cannot migrate nor unlock. The
#           first times out in turn, and gets the lock in the same way once the second is closed.
# Matters:  the default is 15 s, which a migration of a big table exceeds. A service that logs the error and goes on holds the lock for as
#           long as it runs, and the next deployment cannot migrate. To give up a wait has to end the request for the lock.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_postgres service
go_modules github.com/golang-migrate/migrate/v4@v4.20.1 github.com/lib/pq@v1.10.9
cat >main.go <<'END'
package main

import (
	"database/sql"
	"fmt"
	"os"
	"testing/fstest"
	"time"

	"github.com/golang-migrate/migrate/v4"
	_ "github.com/golang-migrate/migrate/v4/database/postgres"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	_ "github.com/lib/pq"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func open(url, table string, patience time.Duration) *migrate.Migrate {
	files, err := iofs.New(fstest.MapFS{
		"1_first.up.sql":  {Data: []byte("SELECT pg_sleep(5)")},
		"2_second.up.sql": {Data: []byte("SELECT 1")},
	}, ".")
	must(err)
	m, err := migrate.NewWithSourceInstance("files", files, url+"&x-migrations-table="+table)
	must(err)
	m.LockTimeout = patience
	return m
}

func main() {
	url := "postgres://service@127.0.0.1:" + os.Args[1] + "/postgres?sslmode=disable"
	db, err := sql.Open("postgres", url)
	must(err)
	for tries := 0; db.Ping() != nil; tries++ {
		if tries == 300 {
			panic("no server")
		}
		time.Sleep(100 * time.Millisecond)
	}
	locks := func() (n int) {
		must(db.QueryRow("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted").Scan(&n))
		return n
	}
	for _, patience := range []time.Duration{time.Minute, time.Second} {
		fmt.Println("the second has patience for", patience)
		table := fmt.Sprintf("migrations%d", patience/time.Second)
		first, second := open(url, table, 3*time.Second), open(url, table, patience)
		done := make(chan error)
		go func() { done <- first.Steps(1) }()
		for locks() == 0 {
			time.Sleep(50 * time.Millisecond)
		}
		fmt.Println("  second, while the first migrates:", second.Migrate(1))
		fmt.Println("  first is done:", <-done)
		time.Sleep(time.Second)
		fmt.Println("  locks that are held now:", locks())
		fmt.Println("  second once more:", second.Migrate(1))
		fmt.Println("  first, the next migration:", first.Steps(1))
		second.Close()
		time.Sleep(time.Second)
		fmt.Println("  locks that are held when the second is closed:", locks())
		fmt.Println("  first, to its version:", first.Migrate(2))
		first.Close()
	}
}
END
expect go run . "$port" <<'END'
the second has patience for 1m0s
  second, while the first migrates: no change
  first is done: <nil>
  locks that are held now: 0
  second once more: no change
  first, the next migration: <nil>
  locks that are held when the second is closed: 0
  first, to its version: no change
the second has patience for 1s
  second, while the first migrates: timeout: can't acquire database lock
  first is done: <nil>
  locks that are held now: 1
  second once more: can't acquire lock
  first, the next migration: timeout: can't acquire database lock
  locks that are held when the second is closed: 1
  first, to its version: can't acquire lock
END
