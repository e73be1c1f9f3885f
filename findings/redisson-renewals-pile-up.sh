#!/usr/bin/env bash
# Redisson: after many quick sections, one hold is renewed 200 times a second
#
# Run:      Redisson 4.7.0 (Maven), Redis 8.2.3, watchdog time 3 s: one hold, and the scripts that Redis runs in 5 s; then 200 times
#           lock() and unlock(), one hold again, and the same count.
# Guess:    a hold is renewed each third of the watchdog time, five or six times in 5 s (as the first count has it), whatever was before.
# Seen:     each short section leaves a timer behind, and each of these renews the lock if somebody holds it when it is due: about 1,000
#           scripts in 5 s.
# Matters:  with the default of 30 s this is a wave of commands ten seconds after a busy moment. A load test of short sections measures
#           the timers as well.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redisson 4.7.0 <<'END'
Config config = new Config();
config.setLockWatchdogTimeout(3_000);
config.useSingleServer().setAddress("redis://127.0.0.1:" + args[0]);
RedissonClient client = Redisson.create(config);
RLock lock = client.getLock("quick");
Callable<Long> scripts = () -> {
    var info = one.getRedisNodes(org.redisson.api.redisnode.RedisNodes.SINGLE).getInstance()
        .info(org.redisson.api.redisnode.RedisNode.InfoSection.COMMANDSTATS).get("cmdstat_evalsha");
    return Long.parseLong(info.replaceAll("calls=(\\d+),.*", "$1"));
};
for (int quick : new int[] {0, 200}) {
    for (int i = 0; i < quick; i++) {
        lock.lock();
        lock.unlock();
    }
    lock.lock();
    Thread.sleep(1_000);
    long before = scripts.call();
    Thread.sleep(5_000);
    long renewals = scripts.call() - before;
    System.out.println("after " + quick + " quick sections, more than 100 scripts in 5 s: " + (renewals > 100));
    lock.unlock();
}
client.shutdown();
END
expect java_main "$port" <<'END'
after 0 quick sections, more than 100 scripts in 5 s: false
after 200 quick sections, more than 100 scripts in 5 s: true
END
