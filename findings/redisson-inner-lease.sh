#!/usr/bin/env bash
# Redisson: a re-entry with a short lease ends the outer, renewed hold
#
# Run:      Redisson 4.7.0 (Maven), Redis 8.2.3: lock(), then on the same thread lock(4, SECONDS) and unlock().
# Guess:    an inner level cannot take from the outer one: lock() is renewed by the watchdog until its own unlock.
# Seen:     the inner level sets the expiry of the one key to 4 s, its unlock does so again, and the watchdog, ten seconds after the outer
#           lock(), finds nothing to renew. The outer section goes on beside the next owner, and learns of it at its unlock.
# Matters:  a helper that takes the lock "once more, to be safe" takes it from its caller. What counts among nested leases has to be the
#           longest, not the last.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redisson 4.7.0 <<'END'
RLock lock = one.getLock("order");
lock.lock();
System.out.println("the outer hold lasts more than 20 s: " + (lock.remainTimeToLive() > 20_000));
lock.lock(4, TimeUnit.SECONDS);
lock.unlock();
System.out.println("after the inner unlock, held: " + lock.isHeldByCurrentThread() + ", for more than 4 s: " + (lock.remainTimeToLive() > 4_000));
System.out.println("another client gets it within 20 s: " + other.getLock("order").tryLock(20, TimeUnit.SECONDS));
try {
    lock.unlock();
} catch (IllegalMonitorStateException e) {
    System.out.println("the outer unlock fails");
}
END
expect java_main "$port" <<'END'
the outer hold lasts more than 20 s: true
after the inner unlock, held: true, for more than 4 s: false
another client gets it within 20 s: true
the outer unlock fails
END
