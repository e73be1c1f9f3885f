#!/usr/bin/env bash
# Spring: in a SimpleAsyncTaskScheduler, as virtual threads have, a job at a fixed rate or by cron runs beside itself
#
# Run:      Spring 6.2.12 (Maven): a job of two and a half seconds, every second at a fixed rate, by cron, and with a fixed delay, for six
#           seconds, in a ThreadPoolTaskScheduler of ten threads, and in a SimpleAsyncTaskScheduler.
# Guess:    one at a time in both, and late: both are made of Java's ScheduledExecutorService, which never runs a periodic job beside itself.
# Seen:     the pool does so. The other one only starts a thread for each execution, and what it has told the executor to do is then over.
#           A fixed delay, which it serves in the scheduler's one thread, is kept.
# Matters:  Spring Boot takes this scheduler as soon as spring.threads.virtual.enabled is set: a setting for requests ends the exclusion of
#           jobs, inside one process, where a lock whose owner is the process lets both in.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

jars org.springframework:spring-context:6.2.12
cat >Main.java <<'END'
import java.time.Duration;
import java.util.concurrent.atomic.AtomicInteger;
import org.springframework.scheduling.TaskScheduler;
import org.springframework.scheduling.concurrent.*;
import org.springframework.scheduling.support.CronTrigger;

class Main {
    interface Way {
        void schedule(TaskScheduler scheduler, Runnable job);
    }

    static void atOnce(String name, TaskScheduler scheduler, Way way) throws Exception {
        AtomicInteger running = new AtomicInteger(), most = new AtomicInteger();
        way.schedule(scheduler, () -> {
            most.accumulateAndGet(running.incrementAndGet(), Math::max);
            try {
                Thread.sleep(2500);
            } catch (InterruptedException e) {
                // the scheduler is closed
            }
            running.decrementAndGet();
        });
        Thread.sleep(6000);
        System.out.println(name + ": " + (most.get() == 1 ? "one at a time" : most.get() > 1 ? "several at once" : "none"));
    }

    static void inBoth(String name, Way way) throws Exception {
        ThreadPoolTaskScheduler pool = new ThreadPoolTaskScheduler();
        pool.setPoolSize(10);
        pool.initialize();
        atOnce(name + ", pool of ten", pool, way);
        pool.shutdown();
        try (SimpleAsyncTaskScheduler simple = new SimpleAsyncTaskScheduler()) {
            atOnce(name + ", a thread for each", simple, way);
        }
    }

    public static void main(String[] args) throws Exception {
        inBoth("fixed rate", (scheduler, job) -> scheduler.scheduleAtFixedRate(job, Duration.ofSeconds(1)));
        inBoth("cron", (scheduler, job) -> scheduler.schedule(job, new CronTrigger("* * * * * *")));
        inBoth("fixed delay", (scheduler, job) -> scheduler.scheduleWithFixedDelay(job, Duration.ofSeconds(1)));
        System.exit(0);
    }
}
END
expect java_main 2>java.log <<'END'
fixed rate, pool of ten: one at a time
fixed rate, a thread for each: several at once
cron, pool of ten: one at a time
cron, a thread for each: several at once
fixed delay, pool of ten: one at a time
fixed delay, a thread for each: one at a time
END
