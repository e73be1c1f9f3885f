#!/usr/bin/env bash
# rueidis: with AlwaysRESP2, one broken connection makes every later Receive fail
#
# Run:      rueidis 1.0.79 (Go), Redis 8.2.3: Receive, CLIENT KILL TYPE pubsub, then Receive again, while somebody publishes; with RESP3
#           and with RESP2.
# Guess:    the client dials anew, as its Do does. The protocol should make no difference.
# Seen:     with RESP3 the very Receive that was cut goes on. With RESP2 it returns EOF, which is documented, but all that follow do as
#           well, with a healthy server and a Do that works.
# Matters:  who retries Receive after an error, as one should, is never told of an unlock again, for as long as the process lives. A
#           DedicatedClient has a connection of its own and works.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
go_modules github.com/redis/rueidis@v1.0.79
cat >main.go <<'END'
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/redis/rueidis"
)

func main() {
	for _, resp2 := range []bool{false, true} {
		option := rueidis.ClientOption{InitAddress: []string{"127.0.0.1:" + os.Args[1]}, AlwaysRESP2: resp2, DisableCache: true}
		client, err := rueidis.NewClient(option)
		if err != nil {
			panic(err)
		}
		other, err := rueidis.NewClient(option)
		if err != nil {
			panic(err)
		}
		// receive subscribes until a message comes, and reports how that ended.
		receive := func() string {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			go func() {
				for ctx.Err() == nil {
					other.Do(ctx, other.B().Publish().Channel("unlock").Message("0").Build())
					time.Sleep(10 * time.Millisecond)
				}
			}()
			got := false
			err := client.Receive(ctx, client.B().Subscribe().Channel("unlock").Build(), func(rueidis.PubSubMessage) { got = true; cancel() })
			switch {
			case errors.Is(err, io.EOF):
				return "EOF"
			case got:
				return "a message"
			default:
				return fmt.Sprint(err)
			}
		}
		before := receive()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		cut := make(chan error, 1)
		go func() {
			cut <- client.Receive(ctx, client.B().Subscribe().Channel("cut").Build(), func(rueidis.PubSubMessage) { cancel() })
		}()
		for n := int64(0); n == 0; {
			numbers, err := other.Do(ctx, other.B().PubsubNumsub().Channel("cut").Build()).ToArray()
			if err != nil {
				panic(err)
			}
			if n, err = numbers[1].AsInt64(); err != nil {
				panic(err)
			}
		}
		other.Do(ctx, other.B().ClientKill().TypePubsub().Build())
		if resp2 {
			<-cut
		}
		cancel()
		after := []string{receive(), receive(), receive()}
		fmt.Println("RESP2:", resp2, "before:", before, "after:", after, "Do:", client.Do(context.Background(), client.B().Ping().Build()).Error())
		client.Close()
		other.Close()
	}
}
END
expect go run . "$port" <<'END'
RESP2: false before: a message after: [a message a message a message] Do: <nil>
RESP2: true before: a message after: [EOF EOF EOF] Do: <nil>
END
