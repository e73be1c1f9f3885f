#!/usr/bin/env bash
# Spring Data Redis: in a locking cache nobody reads any key while one is loaded, and nobody ever again if the loader's process dies
#
# Run:      Spring Data Redis 3.5.5 (Maven), Redis 8.2.3: a cache with RedisCacheWriter.lockingRedisCacheWriter and a cached key. A process
#           loads another key with get(key, loader), for 20 seconds, and is halted at the end of them. Two others read the cached key with
#           get(key), during the load and after the crash, for up to ten seconds.
# Guess:    reads of what is cached go on. The lock is for the key that is loaded, and it ends after some time: it is a lock in Redis.
# Seen:     the lock is one key for the whole cache, each operation of the cache waits while it is there, and it has no expiry unless one is
#           set with a TtlFunction. The cached key cannot be read during the load, nor after the crash.
# Matters:  one slow loader stops all of a cache in all processes, and one crash stops it until somebody deletes "name~lock". Waiting has no
#           limit either. What readers wait for has to be short, or has to have an end of its own.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
jars org.springframework.data:spring-data-redis:3.5.5 io.lettuce:lettuce-core:6.6.0.RELEASE
cat >Main.java <<'END'
import java.util.concurrent.*;
import org.springframework.cache.Cache;
import org.springframework.data.redis.cache.*;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;

class Main {
    static String read(Cache cache) throws Exception {
        var answer = CompletableFuture.supplyAsync(() -> (String) cache.get("cached").get());
        try {
            return answer.get(10, TimeUnit.SECONDS);
        } catch (TimeoutException e) {
            return "nothing for 10 s";
        }
    }

    public static void main(String[] args) throws Exception {
        var redis = new LettuceConnectionFactory("127.0.0.1", Integer.parseInt(args[0]));
        redis.afterPropertiesSet();
        redis.start();
        Cache cache = RedisCacheManager.builder(RedisCacheWriter.lockingRedisCacheWriter(redis)).build().getCache("prices");
        if (args.length > 1) {
            cache.get("loaded", () -> {
                System.out.println("loading");
                Thread.sleep(20_000);
                Runtime.getRuntime().halt(1);
                return "value";
            });
        }
        cache.put("cached", "value");
        System.out.println("read before: " + read(cache));
        Process other = new ProcessBuilder("java", "-cp", System.getProperty("java.class.path"), "Main", args[0], "loads").start();
        other.getInputStream().read();
        System.out.println("read during the load of another key: " + read(cache));
        other.waitFor();
        System.out.println("read after the crash: " + read(cache));
        byte[] lock = "prices~lock".getBytes();
        System.out.println("the lock's ttl: " + redis.getConnection().keyCommands().ttl(lock));
        redis.getConnection().keyCommands().del(lock);
        System.out.println("read without the lock: " + read(cache));
        System.exit(0);
    }
}
END
expect java_main "$port" <<'END'
read before: value
read during the load of another key: nothing for 10 s
read after the crash: nothing for 10 s
the lock's ttl: -1
read without the lock: value
END
