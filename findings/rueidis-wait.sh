#!/usr/bin/env bash
# rueidis: WAIT behind a SET confirms an earlier write
#
# Run:      rueidis 1.0.79 (Go), Redis 8.2.3 with a replica that is stopped (SIGSTOP) before the second write; each command by a Do of its
#           own.
# Guess:    one goroutine, one client, one server: WAIT 1 says whether a replica has the SET before it.
# Seen:     WAIT counts as a blocking command, for which rueidis takes a connection of its own. Redis measures WAIT by the last command of
#           that connection, which here is the WAIT before. So the frozen replica "has" the write, at once. In one DoMulti it is right.
# Matters:  a lock that is to survive a failover believes in a replica that has nothing. Script and WAIT have to go in one DoMulti, or
#           over one Dedicated connection.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2 --repl-ping-replica-period 3600
master=$port
start_server redis-8.2 --replicaof "127.0.0.1 $master"
go_modules github.com/redis/rueidis@v1.0.79
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"github.com/redis/rueidis"
)

func main() {
	ctx := context.Background()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"127.0.0.1:" + os.Args[1]}})
	if err != nil {
		panic(err)
	}
	set := func(key string) rueidis.Completed { return client.B().Set().Key(key).Value("1").Build() }
	wait := func(ms int64) rueidis.Completed { return client.B().Wait().Numreplicas(1).Timeout(ms).Build() }
	said := func(r rueidis.RedisResult) int64 {
		n, err := r.AsInt64()
		if err != nil {
			panic(err)
		}
		return n
	}

	for said(client.Do(ctx, wait(1000))) == 0 { // the replica connects
	}
	client.Do(ctx, set("first"))
	fmt.Println("replicas with the first write:", said(client.Do(ctx, wait(60_000))))
	// A second one, so that the connection of WAIT has an offset that the replica has confirmed.
	said(client.Do(ctx, wait(60_000)))

	pid, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		panic(err)
	}
	client.Do(ctx, set("second"))
	fmt.Println("with the second, which it cannot have:", said(client.Do(ctx, wait(500))))
	fmt.Println("with a third, in one DoMulti:", said(client.DoMulti(ctx, set("third"), wait(500))[1]))
}
END
expect go run . "$master" "${pids[-1]}" <<'END'
replicas with the first write: 1
with the second, which it cannot have: 1
with a third, in one DoMulti: 0
END
