#!/usr/bin/env bash
# NATS: a key made with KeyTTL, as a lock is, loses its TTL with the first Update that renews it, and stays for ever
#
# Run:      nats-server 2.15.3, embedded, and nats.go 1.55.0 (Go): Create in a key-value bucket with KeyTTL of three seconds, for a lock
#           that is left alone and one that its holder updates once; the same with a bucket whose own TTL is three seconds. Later another
#           one creates each key.
# Guess:    an Update is the renewal: the three seconds begin anew, as they do with the bucket's TTL. Or they go on.
# Seen:     a TTL belongs to one revision, and Update makes another one, without. It takes no option for a TTL, and neither does Put: the
#           renewed key outlives its holder until somebody deletes it.
# Matters:  a holder that crashes before its first renewal frees the lock, one that crashes later blocks all others for good: a test that
#           kills the holder at once does not show it. A lock with renewals needs a bucket with a TTL, for all its keys.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

go_modules github.com/nats-io/nats-server/v2@v2.15.3 github.com/nats-io/nats.go@v1.55.0
cat >main.go <<'END'
package main

import (
	"context"
	"errors"
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
	const ttl = 3 * time.Second
	keys := must(stream.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "keys", LimitMarkerTTL: time.Second}))
	bucket := must(stream.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "bucket", TTL: ttl}))

	must(keys.Create(ctx, "left", []byte("me"), jetstream.KeyTTL(ttl)))
	must(keys.Update(ctx, "renewed", []byte("me"), must(keys.Create(ctx, "renewed", []byte("me"), jetstream.KeyTTL(ttl)))))
	must(bucket.Create(ctx, "left", []byte("me")))
	must(bucket.Update(ctx, "renewed", []byte("me"), must(bucket.Create(ctx, "renewed", []byte("me")))))
	time.Sleep(3 * ttl)
	for _, name := range []string{"left", "renewed"} {
		for _, locks := range []jetstream.KeyValue{keys, bucket} {
			_, err := locks.Create(ctx, name, []byte("other"))
			fmt.Printf("TTL of the %s, %s: created: %t, ErrKeyExists: %t\n", locks.Bucket(), name, err == nil, errors.Is(err, jetstream.ErrKeyExists))
		}
	}
}
END
expect go run . <<'END'
TTL of the keys, left: created: true, ErrKeyExists: false
TTL of the bucket, left: created: true, ErrKeyExists: false
TTL of the keys, renewed: created: false, ErrKeyExists: true
TTL of the bucket, renewed: created: true, ErrKeyExists: false
END
