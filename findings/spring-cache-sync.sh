#!/usr/bin/env bash
# Spring Data Redis: with the default cache manager, @Cacheable(sync = true) loads a value once for each thread that asks for it
#
# Run:      Spring Data Redis 3.5.5 with Lettuce 6.6.0 (Maven), Redis 8.2.3: eight threads ask one cache for one key that is not there, by
#           get(key, loader), which is what sync = true calls; in a RedisCacheManager as it comes, in one with a locking writer, and in
#           Spring's ConcurrentMapCache.
# Guess:    one load in all three. Spring calls sync = true a hint to the cache, but for the threads of one process a lock of that process is
#           enough, which every cache can have; the locking writer is for other processes.
# Seen:     eight, all at once, from Redis' default. The other two load once.
# Matters:  what is there against a stampede does nothing, without a word, as soon as the cache of the tests is exchanged for Redis. The
#           locking writer that helps has one lock for the whole cache: see spring-cache-lock.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
jars org.springframework.data:spring-data-redis:3.5.5 io.lettuce:lettuce-core:6.6.0.RELEASE
cat >Main.java <<'END'
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.springframework.cache.Cache;
import org.springframework.cache.concurrent.ConcurrentMapCache;
import org.springframework.data.redis.cache.*;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;

class Main {
    static void run(String name, Cache cache) throws Exception {
        AtomicInteger loads = new AtomicInteger();
        CyclicBarrier start = new CyclicBarrier(8);
        ExecutorService threads = Executors.newFixedThreadPool(8);
        for (int i = 0; i < 8; i++) {
            threads.submit(() -> {
                start.await();
                return cache.get("report", () -> {
                    loads.incrementAndGet();
                    Thread.sleep(2_000);
                    return "value";
                });
            });
        }
        threads.shutdown();
        threads.awaitTermination(1, TimeUnit.MINUTES);
        System.out.println(name + ": loads: " + loads);
    }

    public static void main(String[] args) throws Exception {
        LettuceConnectionFactory redis = new LettuceConnectionFactory("127.0.0.1", Integer.parseInt(args[0]));
        redis.afterPropertiesSet();
        redis.start();
        run("Redis, as it comes", RedisCacheManager.create(redis).getCache("plain"));
        var locking = RedisCacheManager.builder(RedisCacheWriter.lockingRedisCacheWriter(redis)).build();
        run("Redis, with a locking writer", locking.getCache("locking"));
        run("ConcurrentMapCache", new ConcurrentMapCache("map"));
        redis.destroy();
        System.exit(0);
    }
}
END
expect java_main "$port" <<'END'
Redis, as it comes: loads: 8
Redis, with a locking writer: loads: 1
ConcurrentMapCache: loads: 1
END
