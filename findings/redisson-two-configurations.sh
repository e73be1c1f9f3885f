#!/usr/bin/env bash
# Redisson: with useSingleServer and useClusterServers on one Redis, neither wakes the other
#
# Run:      Redisson 4.7.0 (Maven), Redis 8.2.3 as a cluster of one node, which both configurations accept. One client holds for 20 s at
#           most and unlocks after 2 s, while the other waits.
# Guess:    same library, same server, same name: the waiter is in when the holder unlocks.
# Seen:     they exclude each other, but a client of the cluster publishes with SPUBLISH and listens with SSUBSCRIBE, the other with
#           PUBLISH and SUBSCRIBE, which are different channels for Redis. Each sleeps through the other's unlock until the lease that it
#           saw ends.
# Matters:  during a move to a cluster, service by service, waits of a renewed lock grow to 30 s, and no error or log line says why.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_cluster redis-8.2
redisson 4.7.0 <<'END'
Config config = new Config();
config.useClusterServers().addNodeAddress("redis://127.0.0.1:" + args[0]);
RedissonClient cluster = Redisson.create(config);
record Pair(String name, RedissonClient holder, RedissonClient waiter) {}
for (Pair pair : new Pair[] {
    new Pair("single, single", one, other), new Pair("cluster, single", cluster, one), new Pair("single, cluster", one, cluster)}) {
    RLock lock = pair.holder().getLock("order");
    lock.lock(20, TimeUnit.SECONDS);
    CompletableFuture<Long> waiter = CompletableFuture.supplyAsync(() -> {
        RLock waiting = pair.waiter().getLock("order");
        waiting.lock();
        waiting.unlock();
        return System.nanoTime();
    });
    Thread.sleep(2_000);
    lock.unlock();
    long start = System.nanoTime();
    System.out.println("holder, waiter: " + pair.name() + ": woken: " + (waiter.get() - start < 5_000_000_000L));
}
cluster.shutdown();
END
expect java_main "$port" <<'END'
holder, waiter: single, single: woken: true
holder, waiter: cluster, single: woken: false
holder, waiter: single, cluster: woken: false
END
