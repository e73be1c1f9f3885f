#!/usr/bin/env bash
# Spring Integration: with PUB_SUB_LOCK, a dead holder's lock is taken at the end of the waiter's patience, not of the lease
#
# Run:      Spring Integration 6.5.3 (Maven), Redis 8.2.3: a RedisLockRegistry with an expiry of 4 s locks and never unlocks; another
#           waits with tryLock(20 s). Both types of lock.
# Guess:    in after 4 s with either type: that is what the expiry is for.
# Seen:     SPIN_LOCK is in after 4 s. PUB_SUB_LOCK waits for a message, which nobody sends when a key expires, looks again when its 20 s
#           are over, and is in then.
# Matters:  after a crash waiters wait for as long as they would at most, beside a free lock. A waiter has to look at the end of the lease
#           that it saw.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
jars org.springframework.integration:spring-integration-redis:6.5.3 io.lettuce:lettuce-core:6.6.0.RELEASE
cat >Main.java <<'END'
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.redis.util.RedisLockRegistry;

class Main {
    static Lock lock(LettuceConnectionFactory redis, RedisLockRegistry.RedisLockType type) {
        var registry = new RedisLockRegistry(redis, "locks", 4_000);
        registry.setRedisLockType(type);
        return registry.obtain(type.name());
    }

    public static void main(String[] args) throws Exception {
        var redis = new LettuceConnectionFactory("127.0.0.1", Integer.parseInt(args[0]));
        redis.afterPropertiesSet();
        redis.start();
        for (var type : RedisLockRegistry.RedisLockType.values()) {
            lock(redis, type).lock();
            Lock waiter = lock(redis, type);
            long start = System.nanoTime();
            boolean got = waiter.tryLock(20, TimeUnit.SECONDS);
            System.out.println(type + ": got it: " + got + ", after more than 15 s: " + (System.nanoTime() - start > 15_000_000_000L));
        }
        System.exit(0);
    }
}
END
expect java_main "$port" <<'END'
SPIN_LOCK: got it: true, after more than 15 s: false
PUB_SUB_LOCK: got it: true, after more than 15 s: true
END
