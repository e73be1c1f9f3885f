#!/usr/bin/env bash
# Redisson: after a downgrade new readers enter, and those that wait sleep on
#
# Run:      Redisson 4.7.0 (Maven), Redis 8.2.3: a writer with a lease of 20 s takes the read lock, too. A reader waits. The writer
#           unlocks its write lock, so that it is a reader; then a third client reads.
# Guess:    that is what a downgrade is for: the readers that wait are woken. In the JDK's ReentrantReadWriteLock they are.
# Seen:     the lock is in read mode and the newcomer is in at once. Nothing was published, so the waiter sleeps until the lease ends that
#           it was told when it came.
# Matters:  the readers that waited longest are served last. Another implementation helps if it publishes at a downgrade: Redisson's
#           readers do enter.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redisson 4.7.0 <<'END'
RReadWriteLock lock = one.getReadWriteLock("table");
lock.writeLock().lock(20, TimeUnit.SECONDS);
lock.readLock().lock(20, TimeUnit.SECONDS);
CompletableFuture<Boolean> waiter = CompletableFuture.supplyAsync(() -> {
    try {
        return other.getReadWriteLock("table").readLock().tryLock(60, TimeUnit.SECONDS);
    } catch (InterruptedException e) {
        throw new IllegalStateException(e);
    }
});
Thread.sleep(3_000);
lock.writeLock().unlock();
long start = System.nanoTime();
System.out.println("a newcomer reads: " + other.getReadWriteLock("table").readLock().tryLock());
System.out.println("the waiter reads in the end: " + waiter.get() + ", after more than 5 s: " + (millisecondsSince(start) > 5_000));
END
expect java_main "$port" <<'END'
a newcomer reads: true
the waiter reads in the end: true, after more than 5 s: true
END
