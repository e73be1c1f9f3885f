#!/usr/bin/env bash
# Lettuce, redis-py: expire() for 900 ms deletes the lock, and says true
#
# Run:      Lettuce 6.8.1 (Maven), redis 8.1.0 (PyPI), go-redis 9.23.0 (Go), Redis 8.2.3: a lock with an hour's lease, expire for a Duration
#           (timedelta) of 900 ms.
# Guess:    900 ms, a second, or an error: a parameter that is a Duration rather than a number of seconds can say what it cannot do.
# Seen:     Lettuce and redis-py cut the fraction and send EXPIRE 0, which deletes the key. The answer is that of a success. Only go-redis
#           makes it a second, and logs that.
# Matters:  a renewal with a short lease, as a test or a tight failover has, is an unlock, and the holder reads true. pexpire is exact.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
jars io.lettuce:lettuce-core:6.8.1.RELEASE
cat >Main.java <<'END'
import io.lettuce.core.RedisClient;
import java.time.Duration;

class Main {
    public static void main(String[] args) {
        var client = RedisClient.create("redis://127.0.0.1:" + args[0]);
        var redis = client.connect().sync();
        redis.psetex("lock", 3_600_000, "me");
        System.out.println("Lettuce: " + redis.expire("lock", Duration.ofMillis(900)) + ", locks left: " + redis.exists("lock"));
        client.shutdown();
    }
}
END
python_packages redis==8.1.0
cat >main.py <<'END'
import sys
from datetime import timedelta

import redis

client = redis.Redis(port=int(sys.argv[1]))
client.set("lock", "me", ex=3600)
print(f"redis-py: {client.expire('lock', timedelta(milliseconds=900))}, locks left: {client.exists('lock')}")
END
go_modules github.com/redis/go-redis/v9@v9.23.0
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

func main() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]})
	client.Set(ctx, "lock", "me", time.Hour)
	fmt.Printf("go-redis: %t, locks left: %d\n", client.Expire(ctx, "lock", 900*time.Millisecond).Val(), client.Exists(ctx, "lock").Val())
}
END

main() {
	java_main "$port"
	python3 main.py "$port"
	go run . "$port" 2>/dev/null
}
expect main <<'END'
Lettuce: true, locks left: 0
redis-py: True, locks left: 0
go-redis: true, locks left: 1
END
