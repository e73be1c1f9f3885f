#!/usr/bin/env bash
# Redisson: addPermits and drainPermits make a semaphore that expires one that stays
#
# Run:      Redisson 4.7.0 (Maven), Redis 8.2.3: trySetPermits(3, 60 s), then each call that changes the number, and the time that is
#           left.
# Guess:    the expiry is the semaphore's, as acquire and release leave it alone. Counters in Redis keep theirs under INCRBY.
# Seen:     addPermits and drainPermits write the number with SET, which drops the expiry without a word.
# Matters:  a semaphore for a job or a day, named so and thought to vanish, stays for good, with the permits that dead holders never gave
#           back.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redisson 4.7.0 <<'END'
RSemaphore semaphore = one.getSemaphore("day");
record Call(String name, Runnable run) {}
for (Call call : new Call[] {
    new Call("tryAcquire()", semaphore::tryAcquire), new Call("release()", semaphore::release),
    new Call("addPermits(1)", () -> semaphore.addPermits(1)), new Call("drainPermits()", semaphore::drainPermits)}) {
    semaphore.delete();
    semaphore.trySetPermits(3, Duration.ofSeconds(60));
    call.run().run();
    System.out.println(call.name() + ": still expires: " + (semaphore.remainTimeToLive() > 0));
}
END
expect java_main "$port" <<'END'
tryAcquire(): still expires: true
release(): still expires: true
addPermits(1): still expires: false
drainPermits(): still expires: false
END
