#!/usr/bin/env bash
# Redisson: a fair lock's tryLock(10, SECONDS) keeps its place for 10 milliseconds
#
# Run:      Redisson 4.7.0 (Maven), Redis 8.2.3: a fair lock is held for 60 s, another client waits with tryLock(10, SECONDS), and we read
#           the time until which the queue keeps its place (the set redisson_lock_timeout:{name}, Unix time in ms).
# Guess:    now + 60 s (until then nobody can enter) + 10 s, as tryLock(10_000, MILLISECONDS) has it.
# Seen:     the 10 is added as it is. With seconds the place ends when the holder's lease does; with milliseconds ten seconds later.
# Matters:  when a holder dies, whoever calls next drops such a waiter from the queue, just when it is its turn, and may be first itself.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redisson 4.7.0 <<'END'
for (TimeUnit unit : new TimeUnit[] {TimeUnit.MILLISECONDS, TimeUnit.SECONDS}) {
    RLock lock = one.getFairLock("ticket");
    lock.lock(60, TimeUnit.SECONDS);
    Thread waiter = new Thread(() -> {
        try {
            other.getFairLock("ticket").tryLock(unit.convert(10, TimeUnit.SECONDS), unit);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    });
    waiter.start();
    RScoredSortedSet<String> places = one.getScoredSortedSet("redisson_lock_timeout:{ticket}", StringCodec.INSTANCE);
    while (places.isEmpty()) {
        Thread.sleep(1);
    }
    long beyond = places.firstScore().longValue() - System.currentTimeMillis() - lock.remainTimeToLive();
    System.out.println(unit + ": its place outlasts the lease by more than 5 s: " + (beyond > 5_000));
    lock.unlock();
    waiter.join();
    one.getKeys().flushdb();
}
END
expect java_main "$port" <<'END'
MILLISECONDS: its place outlasts the lease by more than 5 s: true
SECONDS: its place outlasts the lease by more than 5 s: false
END
