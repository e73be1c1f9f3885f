#!/usr/bin/env bash
# etcd: a lock "orders" waits for whoever has "orders/eu", and an election "service" names the leader of "service/eu" as its own
#
# Run:      go.etcd.io/etcd/client/v3 3.7.3 (Go), etcd 3.4.23 (Debian), each with a session of its own: concurrency.NewMutex of "orders/eu",
#           then "orders" and "orders-eu"; of "users", then "users/eu"; NewElection of "service/eu" with a leader, then "service".
# Guess:    five names are five locks, and two elections: the "pfx" that these take is where their keys go.
# Seen:     a key is "<name>/<lease>", and who is first is asked for "<name>/" as a prefix: everybody whose name goes on with a slash
#           stands in line too. The other way round nobody waits. Leader() of "service" returns the leader of "service/eu".
# Matters:  a lock for the whole and one for each part is a usual pair. Here the whole waits for the parts, and yet does not keep them
#           out; an election "service" has no leader of its own for as long as one of its regions has one.
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
	for _, name := range []string{"orders/eu", "orders", "orders-eu", "users", "users/eu"} {
		fmt.Printf("%s: %v\n", name, concurrency.NewMutex(session(), name).TryLock(ctx))
	}
	region, whole := concurrency.NewElection(session(), "service/eu"), concurrency.NewElection(session(), "service")
	fmt.Println("campaign for service/eu:", region.Campaign(ctx, "eu-1"))
	short, cancelShort := context.WithTimeout(ctx, 3*time.Second)
	defer cancelShort()
	fmt.Println("campaign for service:", whole.Campaign(short, "main-1"))
	leader, err := whole.Leader(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Printf("leader of service: %s\n", leader.Kvs[0].Value)
	fmt.Println("service/eu resigns:", region.Resign(ctx))
	fmt.Println("campaign for service:", whole.Campaign(ctx, "main-1"))
}
END
expect go run . "$port" <<'END'
orders/eu: <nil>
orders: mutex: Locked by another session
orders-eu: <nil>
users: <nil>
users/eu: <nil>
campaign for service/eu: <nil>
campaign for service: context deadline exceeded
leader of service: eu-1
service/eu resigns: <nil>
campaign for service: <nil>
END
