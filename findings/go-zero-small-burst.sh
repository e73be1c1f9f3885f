#!/usr/bin/env bash
# go-zero: a TokenLimiter whose burst is less than half its rate is no longer shared; each process has the whole limit for itself
#
# Run:      go-zero 1.10.3 (Go), Redis 8.2.3: two TokenLimiters of one key, as in two processes, with a rate of 100 and a burst of 60, and then
#           of 40. Each is asked a hundred times at the same moment, which AllowN takes as an argument.
# Guess:    together they allow as many as the burst: 60, and 40.
# Seen:     60, and 80. The script stores its tokens for twice the time that filling the burst takes, in whole seconds, which is none here.
#           SETEX refuses that, the limiter takes the error for a Redis that is down, and uses the one that it has in memory for that
#           case. All that tells of it is the log.
# Matters:  ten processes let through ten times the limit, with a Redis that is well, and a smaller burst means a higher limit. A fallback
#           should look at what the error is, and a time to live that is computed has to be rounded up.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
go_modules github.com/zeromicro/go-zero@v1.10.3
cat >main.go <<'END'
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/zeromicro/go-zero/core/limit"
	"github.com/zeromicro/go-zero/core/logx"
	"github.com/zeromicro/go-zero/core/stores/redis"
)

func main() {
	logx.Disable()
	now := time.Now()
	for _, burst := range []int{60, 40} {
		key := fmt.Sprint("burst-", burst)
		allowed := make([]int, 2)
		for process := range allowed {
			store := redis.MustNewRedis(redis.RedisConf{Host: "127.0.0.1:" + os.Args[1], Type: redis.NodeType})
			limiter := limit.NewTokenLimiter(100, burst, store, key)
			for range 100 {
				if limiter.AllowN(now, 1) {
					allowed[process]++
				}
			}
		}
		fmt.Printf("rate 100, burst %d: allowed to each: %v\n", burst, allowed)
	}
}
END
expect go run . "$port" <<'END'
rate 100, burst 60: allowed to each: [60 0]
rate 100, burst 40: allowed to each: [40 40]
END
