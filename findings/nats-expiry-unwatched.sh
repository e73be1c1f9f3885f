#!/usr/bin/env bash
# NATS: who watches a lock in a bucket with a TTL hears of its release, and not of its expiry
#
# Run:      nats-server 2.15.3, embedded, and nats.go 1.55.0 (Go): in a key-value bucket with a TTL of three seconds one lock is released by
#           Delete, another is left alone. A watcher of all keys; ten seconds later another one creates both. The same with LimitMarkerTTL.
# Guess:    two events, a delete and some three seconds later a delete or purge for the expired key.
# Seen:     one. A TTL removes the message from the stream under the bucket, and a watcher reads what is added. With LimitMarkerTTL, which
#           is off by default, a marker is added for each key whose last message expires, also for the delete.
# Matters:  waiters who wait for an event sleep on beside a free lock after their holder's crash, which is when a TTL matters. They need
#           LimitMarkerTTL, or a timer for the rest of the TTL.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

go_modules github.com/nats-io/nats-server/v2@v2.15.3 github.com/nats-io/nats.go@v1.55.0
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	ctx := context.Background()
	embedded := must(server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: "data"}))
	embedded.Start()
	if !embedded.ReadyForConnections(time.Minute) {
		panic("not ready")
	}
	stream := must(jetstream.New(must(nats.Connect(embedded.ClientURL()))))
	for _, marker := range []time.Duration{0, time.Minute} {
		bucket := fmt.Sprintf("marker-%d", int(marker.Seconds()))
		locks := must(stream.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: bucket, TTL: 3 * time.Second, LimitMarkerTTL: marker}))
		must(locks.Create(ctx, "released", []byte("me")))
		must(locks.Create(ctx, "left", []byte("me")))
		watcher := must(locks.WatchAll(ctx, jetstream.UpdatesOnly()))
		if err := locks.Delete(ctx, "released"); err != nil {
			panic(err)
		}
		heard := map[string]bool{}
		for end := time.After(10 * time.Second); end != nil; {
			select {
			case entry := <-watcher.Updates():
				if entry != nil {
					heard[entry.Key()] = true
				}
			case <-end:
				end = nil
			}
		}
		for _, lock := range []string{"released", "left"} {
			_, err := locks.Create(ctx, lock, []byte("other"))
			fmt.Printf("%s, %s: heard of: %t, free: %t\n", bucket, lock, heard[lock], err == nil)
		}
	}
}
END
expect go run . <<'END'
marker-0, released: heard of: true, free: true
marker-0, left: heard of: false, free: true
marker-60, released: heard of: true, free: true
marker-60, left: heard of: true, free: true
END
