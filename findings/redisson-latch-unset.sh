#!/usr/bin/env bash
# Redisson: a latch that nobody has set yet lets everybody through
#
# Run:      Redisson 4.7.0 (Maven), Redis 8.2.3: await(5 s) on a latch, and tryAcquire on a semaphore, before trySetCount and
#           trySetPermits; then both are set.
# Guess:    both wait. What is not set up is not done: in Java no latch exists without its count.
# Seen:     a missing latch is one that has counted down, so await returns true at once. A missing semaphore has no permits.
# Matters:  of a starter and its workers, those that are first do not wait, and that a latch expired, was evicted or lost in a failover
#           looks like success. The count has to be set before anybody can await it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redisson 4.7.0 <<'END'
RCountDownLatch latch = one.getCountDownLatch("latch");
RSemaphore semaphore = one.getSemaphore("semaphore");
System.out.println("not set: latch: " + latch.await(5, TimeUnit.SECONDS) + ", semaphore: " + semaphore.tryAcquire());
other.getCountDownLatch("latch").trySetCount(1);
other.getSemaphore("semaphore").trySetPermits(1);
System.out.println("set: latch: " + latch.await(1, TimeUnit.SECONDS) + ", semaphore: " + semaphore.tryAcquire());
END
expect java_main "$port" <<'END'
not set: latch: true, semaphore: false
set: latch: false, semaphore: true
END
