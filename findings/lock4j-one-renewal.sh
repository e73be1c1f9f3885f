#!/usr/bin/env bash
# lock4j: after one renewal that took too long the lock is not renewed any more, and others get it while its holder works
#
# Run:      lock4j 2.2.7 with Spring Data Redis 3.5.3 and Lettuce 6.6.0 (Maven), Redis 8.2.3: a lock with expire -1, which is renewed, and a
#           lease of nine seconds; commands may take two. Redis does not answer for six seconds, once, at the time of the first renewal.
#           Twelve seconds after that another thread asks for the lock. Before that, the same with a break of 0.2 s.
# Guess:    the lock is held in both cases: a renewal is due each three seconds, there is time for a second one before the lease ends, and
#           the first one is carried out, too, once Redis is back: its caller alone has given up.
# Seen:     the next renewal is planned by the one before, once that has succeeded. One exception in it ends them all. Nobody is told, the
#           lease runs out, and the other thread gets the lock. All that the holder learns is that its release fails.
# Matters:  a third of the lease as interval suggests that one failure does no harm. Here the first timeout of a busy Redis puts two into
#           the section. Whoever renews has to plan the next try whatever this one says, and to tell the holder when the lease is over.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
jars com.baomidou:lock4j-redis-template-spring-boot-starter:2.2.7 com.baomidou:lock4j-core:2.2.7 \
	org.springframework.data:spring-data-redis:3.5.3 io.lettuce:lettuce-core:6.6.0.RELEASE
cat >Main.java <<'END'
import com.baomidou.lock.*;
import com.baomidou.lock.executor.RedisTemplateLockExecutor;
import com.baomidou.lock.spring.boot.autoconfigure.Lock4jProperties;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.*;
import org.springframework.data.redis.connection.RedisStandaloneConfiguration;
import org.springframework.data.redis.connection.lettuce.*;
import org.springframework.data.redis.core.*;

class Main {
    static LettuceConnectionFactory connect(int port, long timeoutMillis) {
        var factory = new LettuceConnectionFactory(new RedisStandaloneConfiguration("127.0.0.1", port),
            LettuceClientConfiguration.builder().commandTimeout(Duration.ofMillis(timeoutMillis)).build());
        factory.afterPropertiesSet();
        factory.start();
        return factory;
    }

    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[0]);
        var properties = new Lock4jProperties();
        properties.setExpire(9_000L);
        var locks = new LockTemplate();
        locks.setProperties(properties);
        locks.setExecutors(List.of(new RedisTemplateLockExecutor(new StringRedisTemplate(connect(port, 2_000)), properties)));
        locks.afterPropertiesSet();
        var admin = new StringRedisTemplate(connect(port, 30_000));
        var otherThread = Executors.newSingleThreadExecutor();
        for (int pause : new int[] {200, 6_000}) {
            String name = "lock-" + pause;
            LockInfo holder = locks.lock(name, -1, 0);
            Thread.sleep(2_000); // the first renewal is at 3,000
            admin.execute((RedisCallback<Object>) connection ->
                connection.execute("CLIENT", "PAUSE".getBytes(), String.valueOf(pause).getBytes(), "ALL".getBytes()));
            Thread.sleep(pause + 12_000);
            LockInfo other = otherThread.submit(() -> locks.lock(name, -1, 0)).get();
            System.out.println("a break of " + pause + " ms: another one gets the lock: " + (other != null)
                + ", the holder can release it: " + locks.releaseLock(holder));
        }
        System.exit(0);
    }
}
END
expect java_main "$port" <<'END'
a break of 200 ms: another one gets the lock: false, the holder can release it: true
a break of 6000 ms: another one gets the lock: true, the holder can release it: false
END
