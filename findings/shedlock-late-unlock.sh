#!/usr/bin/env bash
# ShedLock: a job that overruns lockAtMostFor unlocks the next one's lock
#
# Run:      ShedLock 6.10.0 with its provider for Spring Data Redis 3.5.5 (Maven), Redis 8.2.3: the first holder's lockAtMostFor is over,
#           a second has the lock for a minute, the first unlocks, a third tries. With the constructor of the provider, and with
#           safeUpdate(true).
# Guess:    the value in Redis is unique to each lock, so the unlock compares it.
# Seen:     with the constructor the unlock is a plain DEL: the third is in beside the second. The value is compared only with
#           safeUpdate(true), of the builder.
# Matters:  one slow run is followed by a chain of overlapping ones, as each late unlock frees a lock that is somebody else's.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
jars net.javacrumbs.shedlock:shedlock-provider-redis-spring:6.10.0 \
	org.springframework.data:spring-data-redis:3.5.5 io.lettuce:lettuce-core:6.6.0.RELEASE
cat >Main.java <<'END'
import java.time.*;
import java.util.*;
import net.javacrumbs.shedlock.core.*;
import net.javacrumbs.shedlock.provider.redis.spring.RedisLockProvider;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;

class Main {
    static Optional<SimpleLock> lock(LockProvider provider, Duration atMost) {
        return provider.lock(new LockConfiguration(Instant.now(), "report", atMost, Duration.ZERO));
    }

    public static void main(String[] args) throws Exception {
        var redis = new LettuceConnectionFactory("127.0.0.1", Integer.parseInt(args[0]));
        redis.afterPropertiesSet();
        redis.start();
        var providers = new LinkedHashMap<String, LockProvider>();
        providers.put("constructor", new RedisLockProvider(redis, "one"));
        providers.put("safeUpdate(true)", new RedisLockProvider.Builder(redis).environment("two").safeUpdate(true).build());
        for (var provider : providers.entrySet()) {
            SimpleLock first = lock(provider.getValue(), Duration.ofMillis(200)).orElseThrow();
            Optional<SimpleLock> second = Optional.empty();
            while (second.isEmpty()) {
                second = lock(provider.getValue(), Duration.ofMinutes(1));
            }
            first.unlock();
            System.out.println(provider.getKey() + ": the third gets it: " + lock(provider.getValue(), Duration.ofMinutes(1)).isPresent());
        }
        System.exit(0);
    }
}
END
expect java_main "$port" <<'END'
constructor: the third gets it: true
safeUpdate(true): the third gets it: false
END
