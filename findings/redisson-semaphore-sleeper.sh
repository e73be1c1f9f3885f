#!/usr/bin/env bash
# Redisson: a permit is free, somebody waits for one, and nobody takes it
#
# Run:      Redisson 4.7.0 (Maven), Redis 8.2.3: in one client a thread waits for three permits, then another for one. One permit is
#           released.
# Guess:    the second thread gets it: one permit is all it wants, and acquire promises no order.
# Seen:     the released number, 1, is the number of local threads that are woken, the first in line. That one wants three, sees one,
#           sleeps on, and passes nothing on. The other gives up at the end of its time beside a free permit.
# Matters:  waits of different sizes on one semaphore starve the small ones, not only the large. Java's acquire() has no time after which
#           it looks.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redisson 4.7.0 <<'END'
RSemaphore semaphore = one.getSemaphore("slots");
semaphore.trySetPermits(0);
ExecutorService pool = Executors.newFixedThreadPool(2);
Future<Boolean> three = pool.submit(() -> other.getSemaphore("slots").tryAcquire(3, Duration.ofSeconds(12)));
Thread.sleep(2_000);
Future<Boolean> single = pool.submit(() -> other.getSemaphore("slots").tryAcquire(1, Duration.ofSeconds(8)));
Thread.sleep(2_000);
semaphore.release();
System.out.println("the one that wants one got it: " + single.get());
System.out.println("permits that are free: " + semaphore.availablePermits());
three.get();
System.out.println("who asks anew gets it: " + other.getSemaphore("slots").tryAcquire());
pool.shutdown();
END
expect java_main "$port" <<'END'
the one that wants one got it: false
permits that are free: 1
who asks anew gets it: true
END
