#!/usr/bin/env bash
# rueidislock: with a clock six seconds behind Redis' own, everybody gets the lock
#
# Run:      rueidislock of rueidis 1.0.79 (Go), Redis 8.2.3, whose clock libfaketime 0.9.10 (Debian) sets six seconds ahead of the clients:
#           TryWithContext by three lockers, with the defaults and with FallbackSETPX.
# Guess:    clocks do not matter: a lease is a duration, which Redis alone measures. If they do, nobody gets the lock.
# Seen:     the end of the lease is sent by the client's clock (SET NX PXAT). For Redis that is past: it answers OK and keeps nothing. So
#           each TryWithContext succeeds, and ends the section of the one before. FallbackSETPX, "to be compatible with Redis < 6.2", does
#           exclude, until the first renewal, which goes by the clock as well and deletes the key.
# Matters:  one machine with a clock behind enters beside all others, and nothing fails. The lease of 5 s is all the difference that clocks
#           may have.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

debian libfaketime=0.9.10-2.1
LD_PRELOAD=$(find "$folder/debian" -name libfaketime.so.1) FAKETIME=+6s start_server redis-8.2
unset LD_LIBRARY_PATH
go_modules github.com/redis/rueidis@v1.0.79
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

func main() {
	for _, px := range []bool{false, true} {
		fmt.Println("FallbackSETPX:", px)
		var sections []context.Context
		lock := func(name string) {
			locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
				ClientOption:  rueidis.ClientOption{InitAddress: []string{"127.0.0.1:" + os.Args[1]}},
				FallbackSETPX: px,
				TryNextAfter:  time.Second,
			})
			if err != nil {
				panic(err)
			}
			ctx, _, err := locker.TryWithContext(context.Background(), "order")
			fmt.Printf("  %s: %v\n", name, err)
			if err == nil {
				sections = append(sections, ctx)
			}
		}
		lock("first")
		time.Sleep(200 * time.Millisecond)
		lock("second")
		time.Sleep(time.Second)
		for _, ctx := range sections {
			fmt.Println("    a second later:", ctx.Err())
		}
		time.Sleep(2 * time.Second)
		for _, ctx := range sections {
			fmt.Println("    3 s later:", ctx.Err())
		}
		lock("third")
	}
}
END
expect go run . "$port" <<'END'
FallbackSETPX: false
  first: <nil>
  second: <nil>
    a second later: context canceled
    a second later: <nil>
    3 s later: context canceled
    3 s later: context canceled
  third: <nil>
FallbackSETPX: true
  first: <nil>
  second: not locked: key rueidislock:0:order is held by others
    a second later: <nil>
    3 s later: context canceled
  third: <nil>
END
