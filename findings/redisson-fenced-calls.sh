#!/usr/bin/env bash
# Redisson: with a token, a fenced lock's lease is ignored, and its tryLock waits
#
# Run:      Redisson 4.7.0 (Maven), Redis 8.2.3: lock(5, SECONDS) and tryLock() beside lockAndGetToken(5, SECONDS) and
#           tryLockAndGetToken().
# Guess:    the same calls, with a token as well.
# Seen:     lockAndGetToken(5, SECONDS) holds for the watchdog's 30 s and is renewed: the lease is lost on the way. tryLockAndGetToken()
#           of a taken lock, without a waiting time, is in after the holder's five seconds, where tryLock() is back at once.
# Matters:  who gave a lease to be rid of dead and stuck holders has none: a stuck one holds for as long as its process lives.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redisson 4.7.0 <<'END'
RFencedLock lock = one.getFencedLock("ledger"), second = other.getFencedLock("ledger");
lock.lockAndGetToken(5, TimeUnit.SECONDS);
System.out.println("lockAndGetToken(5 s) lasts more than 5 s: " + (lock.remainTimeToLive() > 5_000));
lock.unlock();
lock.lock(5, TimeUnit.SECONDS);
System.out.println("lock(5 s) lasts more than 5 s: " + (lock.remainTimeToLive() > 5_000));
long start = System.nanoTime();
System.out.println("tryLock() of the taken lock: " + second.tryLock());
System.out.println("tryLockAndGetToken() of the taken lock has a token: " + (second.tryLockAndGetToken() != null)
    + ", after more than 3 s: " + (millisecondsSince(start) > 3_000));
END
expect java_main "$port" <<'END'
lockAndGetToken(5 s) lasts more than 5 s: true
lock(5 s) lasts more than 5 s: false
tryLock() of the taken lock: false
tryLockAndGetToken() of the taken lock has a token: true, after more than 3 s: true
END
