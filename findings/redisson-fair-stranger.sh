#!/usr/bin/env bash
# Redisson: whoever unlocks a free fair lock succeeds, also if it never had it
#
# Run:      Redisson 4.7.0 (Maven), Redis 8.2.3: unlock() of a lock that nobody holds, for three kinds.
# Guess:    IllegalMonitorStateException, as the interface says of an unlock by another thread.
# Seen:     so it is for the plain lock and for the write lock. A fair lock's unlock returns as if all had been well.
# Matters:  for a section whose lease ended before its unlock this exception is the only notice that it was not alone. With a fair lock
#           there is none, unless another owner is inside by then.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redisson 4.7.0 <<'END'
record Kind(String name, RLock lock) {}
for (Kind kind : new Kind[] {
    new Kind("plain", one.getLock("a")), new Kind("write", one.getReadWriteLock("b").writeLock()), new Kind("fair", one.getFairLock("c"))}) {
    String seen = "no exception";
    try {
        kind.lock().lock(1, TimeUnit.MILLISECONDS);
        while (kind.lock().isLocked()) {
            Thread.sleep(1);
        }
        kind.lock().unlock();
    } catch (IllegalMonitorStateException e) {
        seen = "IllegalMonitorStateException";
    }
    System.out.println(kind.name() + ", unlocked after its lease: " + seen);
}
other.getFairLock("never").unlock();
System.out.println("fair, never locked: no exception");
END
expect java_main "$port" <<'END'
plain, unlocked after its lease: IllegalMonitorStateException
write, unlocked after its lease: IllegalMonitorStateException
fair, unlocked after its lease: no exception
fair, never locked: no exception
END
