#!/usr/bin/env bash
# Spring Integration: RedisLockRegistry's cacheCapacity evicts locks that are held, and a second thread is let in
#
# Run:      Spring Integration 6.5.3 (Maven), Redis 8.2.3: a registry with a cacheCapacity of three. A thread holds "report", and takes and
#           releases the locks of two or three orders meanwhile. Then another thread tries "report".
# Guess:    the capacity is for lock objects that nobody holds: "report" stays, and the other thread is refused. Or it is asked for in
#           Redis, where it is taken.
# Seen:     the object that was used least lately goes, held or not. obtain("report") then makes a second one with a mutex of its own, and
#           in Redis the owner is the registry, not the thread, so it is let in.
# Matters:  two threads of one process in one section; the holder of the lock is named by registry. The default is 100,000 names, which a
#           lock for each order reaches in time: the lock that is held longest goes first.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
jars org.springframework.integration:spring-integration-redis:6.5.3 io.lettuce:lettuce-core:6.6.0.RELEASE
cat >Main.java <<'END'
import java.util.concurrent.*;
import java.util.concurrent.locks.Lock;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.redis.util.RedisLockRegistry;

class Main {
    public static void main(String[] args) throws Exception {
        var redis = new LettuceConnectionFactory("127.0.0.1", Integer.parseInt(args[0]));
        redis.afterPropertiesSet();
        redis.start();
        var otherThread = Executors.newSingleThreadExecutor();
        for (int orders = 2; orders <= 3; orders++) {
            var registry = new RedisLockRegistry(redis, "locks-" + orders, 600_000);
            registry.setCacheCapacity(3);
            registry.obtain("report").lock();
            for (int order = 1; order <= orders; order++) {
                Lock lock = registry.obtain("order-" + order);
                lock.lock();
                lock.unlock();
            }
            boolean entered = otherThread.submit(() -> registry.obtain("report").tryLock()).get();
            System.out.println("after " + orders + " orders another thread is let in beside the holder: " + entered);
        }
        System.exit(0);
    }
}
END
expect java_main "$port" <<'END'
after 2 orders another thread is let in beside the holder: false
after 3 orders another thread is let in beside the holder: true
END
