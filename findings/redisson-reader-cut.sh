#!/usr/bin/env bash
# Redisson: a reader's lease of a minute ends within seconds, when another reader, who renews, dies
#
# Run:      Redisson 4.7.0 (Maven), Redis 8.2.3: a reader with a lease of a minute, beside one that renews, with a lockWatchdogTimeout of
#           six seconds. After a renewal that one leaves, or ends without an unlock, as a process that dies. A writer waits for ten seconds.
# Guess:    the writer is refused in both cases: each reader has a hold of its own, and the minute is not over. When a reader enters, the
#           longer time stays.
# Seen:     each renewal sets the expiry of what all readers share to the six seconds, also if there was more. unlock() puts that right,
#           and a reader who dies cannot. Six seconds later the writer is in beside the reader, who is told nothing.
# Matters:  the death of a stranger ends a hold that has its time in writing. The default is 30 s, which takes it from whoever has asked
#           for more. What several holders share has to end with the last of them.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redisson 4.7.0 <<'END'
for (boolean dies : new boolean[] {false, true}) {
    RReadWriteLock report = one.getReadWriteLock("report-" + dies);
    report.readLock().lock(60, TimeUnit.SECONDS);
    Config config = new Config();
    config.setLockWatchdogTimeout(6_000).useSingleServer().setAddress("redis://127.0.0.1:" + args[0]);
    RedissonClient third = Redisson.create(config);
    RLock renewed = third.getReadWriteLock("report-" + dies).readLock();
    renewed.lock();
    System.out.println("both are in: more than 40 s are left: " + (report.readLock().remainTimeToLive() > 40_000));
    while (report.readLock().remainTimeToLive() > 6_000) {
        Thread.sleep(100);
    }
    System.out.println("after a renewal: " + (report.readLock().remainTimeToLive() > 40_000));
    if (!dies) {
        renewed.unlock();
    }
    third.shutdown();
    System.out.println("the other one has " + (dies ? "died: " : "left: ") + (report.readLock().remainTimeToLive() > 40_000));
    System.out.println("a writer gets in: " + other.getReadWriteLock("report-" + dies).writeLock().tryLock(10, TimeUnit.SECONDS));
}
END
expect java_main "$port" <<'END'
both are in: more than 40 s are left: true
after a renewal: false
the other one has left: true
a writer gets in: false
both are in: more than 40 s are left: true
after a renewal: false
the other one has died: false
a writer gets in: true
END
