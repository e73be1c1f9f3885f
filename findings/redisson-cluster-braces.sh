#!/usr/bin/env bash
# Redisson: a name with "{}" can be locked in a Redis Cluster, and not unlocked
#
# Run:      Redisson 4.7.0 (Maven), Redis 8.2.3 as a cluster of one node: lock() and unlock() of names with braces.
# Guess:    either both work or neither does. Names such as order:{}, from a template whose value was empty, are only odd.
# Seen:     lock() uses one key, and works. unlock() adds two keys, which go to the lock's slot only by a hash tag. Redisson adds no
#           braces of its own if there is one in the name, and empty or open braces are no tag. So the unlock is an error, CROSSSLOT,
#           every time.
# Matters:  the first test on a single server passes. In the cluster each section ends in an exception and the lock is kept for its lease.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_cluster redis-8.2
redisson 4.7.0 <<'END'
Config config = new Config();
config.useClusterServers().addNodeAddress("redis://127.0.0.1:" + args[0]);
RedissonClient cluster = Redisson.create(config);
for (String name : new String[] {"order", "order:{7}", "order:{}", "order:{7"}) {
    RLock lock = cluster.getLock(name);
    lock.lock();
    String seen = "unlocked";
    try {
        lock.unlock();
    } catch (Exception e) {
        seen = e.getMessage().replaceAll(" .*", "");
    }
    System.out.println(name + ": locked, then " + seen + ", held: " + lock.isLocked());
}
cluster.shutdown();
END
expect java_main "$port" <<'END'
order: locked, then unlocked, held: false
order:{7}: locked, then unlocked, held: false
order:{}: locked, then CROSSSLOT, held: true
order:{7: locked, then CROSSSLOT, held: true
END
