#!/usr/bin/env bash
# ShedLock: inside a job, another job of that name runs without asking its own Redis
#
# Run:      ShedLock 6.10.0 with its provider for Spring Data Redis 3.5.5 (Maven), two Redis 8.2.3: the lock "report" of the second Redis
#           is held by somebody else. An executor of the second is asked to run "report", alone, and inside a "report" of the first.
# Guess:    it is not run in either case: the executors have different providers, servers and environments.
# Seen:     which locks a thread has is known by name alone, for the process. Inside the first job the second's Redis is not asked, and
#           the job runs.
# Matters:  re-entry has to go by lock, not by name. Two tenants or regions in one process, each with a lock server of its own, are
#           enough.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
first=$port
start_server redis-8.2
jars net.javacrumbs.shedlock:shedlock-provider-redis-spring:6.10.0 \
	org.springframework.data:spring-data-redis:3.5.5 io.lettuce:lettuce-core:6.6.0.RELEASE
cat >Main.java <<'END'
import java.time.*;
import net.javacrumbs.shedlock.core.*;
import net.javacrumbs.shedlock.provider.redis.spring.RedisLockProvider;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;

class Main {
    static LockProvider provider(String port) {
        var redis = new LettuceConnectionFactory("127.0.0.1", Integer.parseInt(port));
        redis.afterPropertiesSet();
        redis.start();
        return new RedisLockProvider(redis, "environment-" + port);
    }

    public static void main(String[] args) throws Exception {
        LockProvider first = provider(args[0]), second = provider(args[1]);
        var report = new LockConfiguration(Instant.now(), "report", Duration.ofMinutes(1), Duration.ZERO);
        second.lock(report).orElseThrow();
        var executor = new DefaultLockingTaskExecutor(second);
        executor.executeWithLock((Runnable) () -> System.out.println("alone: runs"), report);
        new DefaultLockingTaskExecutor(first).executeWithLock((Runnable) () -> executor.executeWithLock(
            (Runnable) () -> System.out.println("inside the other's job: runs"), report), report);
        System.exit(0);
    }
}
END
expect java_main "$first" "$port" <<'END'
inside the other's job: runs
END
