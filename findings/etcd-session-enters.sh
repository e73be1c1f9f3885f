#!/usr/bin/env bash
# etcd: two Mutexes of one session hold the same lock at once, and the first Unlock frees it for others
#
# Run:      go.etcd.io/etcd/client/v3 3.7.3 (Go), etcd 3.4.23 (Debian): concurrency.NewMutex twice with one session and one prefix, TryLock
#           on both; then Unlock of the first, and TryLock by another session.
# Guess:    the second is refused: two objects, as two goroutines have them, are two owners. Or re-entry is counted.
# Seen:     the owner is the session, and its key is there already, so the second has the lock too. Nothing counts: the first Unlock
#           deletes the key, another session enters beside the second holder, whose own Unlock reports no error.
# Matters:  a process that shares its session, as the number of leases suggests, excludes other processes and not its own goroutines. These
#           need a sync.Mutex before it, or a session each.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

debian etcd-server=3.4.23-4+b4
unset LD_LIBRARY_PATH
port=$(free_port)
peer=$(free_port)
run debian/usr/bin/etcd --data-dir data --listen-client-urls "http://127.0.0.1:$port" --advertise-client-urls "http://127.0.0.1:$port" \
	--listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
	--initial-cluster "default=http://127.0.0.1:$peer"
go_modules go.etcd.io/etcd/client/v3@v3.7.3
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:" + os.Args[1]}})
	if err != nil {
		panic(err)
	}
	session := func() *concurrency.Session {
		s, err := concurrency.NewSession(client, concurrency.WithContext(ctx))
		if err != nil {
			panic(err)
		}
		return s
	}
	shared, own := session(), session()
	first, second := concurrency.NewMutex(shared, "/order"), concurrency.NewMutex(shared, "/order")
	other := concurrency.NewMutex(own, "/order")
	fmt.Println("first:", first.TryLock(ctx))
	fmt.Println("second of that session:", second.TryLock(ctx))
	fmt.Println("another session:", other.TryLock(ctx))
	fmt.Println("first unlocks:", first.Unlock(ctx))
	fmt.Println("another session:", other.TryLock(ctx))
	fmt.Println("second unlocks:", second.Unlock(ctx))
}
END
expect go run . "$port" <<'END'
first: <nil>
second of that session: <nil>
another session: mutex: Locked by another session
first unlocks: <nil>
another session: <nil>
second unlocks: <nil>
END
