#!/usr/bin/env bash
# rueidis: PING works at maxclients, and three of four other commands do not
#
# Run:      rueidis 1.0.79 (Go, GOMAXPROCS=4), Redis 8.2.3. A client with default options connects and sends PING and SET; then the server
#           takes no further connection (maxclients), and the client sends on.
# Guess:    a client that has its connection, over which it pipelines everything, does not care.
# Seen:     it has up to four (a power of two up to GOMAXPROCS), and NewClient dials one. A command with a key goes to a random one, which
#           is dialled when it is first used; one without a key always goes to the first. So PING never fails, and most others do.
# Matters:  a health check by PING says that all is well while most calls for locks fail, depending on how many commands ran before the
#           server was full. PipelineMultiplex -1 makes it one connection.
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
	"strconv"

	"github.com/redis/rueidis"
)

func main() {
	ctx := context.Background()
	for _, multiplex := range []int{0, -1} {
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"127.0.0.1:" + os.Args[1]}, PipelineMultiplex: multiplex})
		if err != nil {
			panic(err)
		}
		limit := func(n string) {
			if err := client.Do(ctx, client.B().ConfigSet().ParameterValue().ParameterValue("maxclients", n).Build()).Error(); err != nil {
				panic(err)
			}
		}
		limit("1")
		pings, sets := 0, 0
		for i := range 200 {
			if client.Do(ctx, client.B().Ping().Build()).Error() != nil {
				pings++
			}
			if client.Do(ctx, client.B().Set().Key("key"+strconv.Itoa(i)).Value("1").Build()).Error() != nil {
				sets++
			}
		}
		often := "none"
		if sets > 120 && sets < 180 {
			often = "three of four"
		} else if sets > 0 {
			often = strconv.Itoa(sets)
		}
		fmt.Printf("PipelineMultiplex %d: PING failed %d times, SET: %s\n", multiplex, pings, often)
		limit("1000")
		client.Close()
	}
}
END
export GOMAXPROCS=4
expect go run . "$port" <<'END'
PipelineMultiplex 0: PING failed 0 times, SET: three of four
PipelineMultiplex -1: PING failed 0 times, SET: none
END
