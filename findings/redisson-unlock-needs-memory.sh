#!/usr/bin/env bash
# Redisson: unlock() fails when Redis is full, although it frees memory
#
# Run:      Redisson 4.7.0 (Maven), Redis 8.2.3: lock(), then CONFIG SET maxmemory 1mb (noeviction, as ever), unlock(), and DEL of the
#           lock.
# Guess:    a full Redis refuses new locks. To unlock is to delete a key, which Redis allows.
# Seen:     the first writing command of the script is the one that counts the hold down, HINCRBY, which needs memory in Redis's book. So
#           the script ends in OOM and the lock stays for what is left of its lease. DEL works all the while.
# Matters:  with a full Redis each section keeps its lock up to 30 s longer, and the exception in finally hides the section's own. A
#           script that knows the final count can delete without counting.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redisson 4.7.0 <<'END'
RLock lock = one.getLock("order");
lock.lock();
var redis = one.getRedisNodes(org.redisson.api.redisnode.RedisNodes.SINGLE).getInstance();
redis.setConfig("maxmemory", "1mb");
try {
    lock.unlock();
} catch (Exception e) {
    System.out.println("unlock() fails: " + e.getMessage().replaceAll(" *script:.*", ""));
}
System.out.println("held: " + lock.isHeldByCurrentThread());
System.out.println("deleted: " + one.getKeys().delete("order"));
END
expect java_main "$port" <<'END'
unlock() fails: command not allowed when used memory > 'maxmemory'.
held: true
deleted: 1
END
