#!/usr/bin/env bash
# Redisson: whoever waits for a permit does not notice that its lease was cut short
#
# Run:      Redisson 4.7.0 (Maven), Redis 8.2.3: one client has the only permit for a minute, and another waits for it. The first sets the
#           permit's lease to a second with updateLeaseTime.
# Guess:    the waiter gets the permit when the second is over. It does get one whose lease ends by itself.
# Seen:     updateLeaseTime tells nobody, and the waiter sleeps until the end that it saw when it asked, here a minute. Whoever asks anew
#           meanwhile gets the permit.
# Matters:  who cuts the lease of a client that is known to be gone helps the next to come, not those who wait.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redisson 4.7.0 <<'END'
RPermitExpirableSemaphore permits = one.getPermitExpirableSemaphore("permits");
permits.trySetPermits(1);
for (boolean cut : new boolean[] {false, true}) {
    String id = permits.acquire(cut ? 60 : 3, TimeUnit.SECONDS);
    CompletableFuture<String> waiter = CompletableFuture.supplyAsync(() -> {
        try {
            return other.getPermitExpirableSemaphore("permits").acquire(20, TimeUnit.SECONDS);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    });
    Thread.sleep(2_000);
    if (cut) {
        permits.updateLeaseTime(id, 1, TimeUnit.SECONDS);
    }
    Thread.sleep(6_000);
    System.out.println((cut ? "cut to a second" : "three seconds") + ": the waiter got it: " + waiter.isDone());
    if (!cut) {
        permits.release(waiter.get());
    }
}
System.out.println("who asks anew gets it: " + (permits.tryAcquire() != null));
System.exit(0); // the waiter would sleep on
END
expect java_main "$port" <<'END'
three seconds: the waiter got it: true
cut to a second: the waiter got it: false
who asks anew gets it: true
END
