#!/usr/bin/env bash
# Redisson: the unlock of a spin lock wakes nobody who waits for the plain lock of that name
#
# Run:      Redisson 4.7.0 (Maven), Redis 8.2.3: getSpinLock(name) is held for 20 s at most and unlocked after 2 s, while getLock(name)
#           waits; and the other way round.
# Guess:    both are an RLock on one hash and exclude each other. A spin lock polls instead of listening; that is the waiter's affair.
# Seen:     the spin lock's unlock publishes nothing either, so a plain waiter sleeps until the lease ends. The other way round is quick.
# Matters:  "let the hot path spin" cannot be decided for one caller of a lock: it slows down all the others.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redisson 4.7.0 <<'END'
record Pair(String name, RLock holder, RLock waiter) {}
for (Pair pair : new Pair[] {
    new Pair("plain, spin", one.getLock("order"), other.getSpinLock("order")),
    new Pair("spin, plain", one.getSpinLock("order"), other.getLock("order"))}) {
    pair.holder().lock(20, TimeUnit.SECONDS);
    CompletableFuture<Long> waiter = CompletableFuture.supplyAsync(() -> {
        pair.waiter().lock();
        long now = System.nanoTime();
        pair.waiter().unlock();
        return now;
    });
    Thread.sleep(2_000);
    pair.holder().unlock();
    long start = System.nanoTime();
    System.out.println("holder, waiter: " + pair.name() + ": in within 5 s: " + (waiter.get() - start < 5_000_000_000L));
}
END
expect java_main "$port" <<'END'
holder, waiter: plain, spin: in within 5 s: true
holder, waiter: spin, plain: in within 5 s: false
END
