#!/usr/bin/env bash
# node-redisson: a name with braces inside, and Java's unlock does not wake it
#
# Run:      node-redisson 1.0.4 (npm), Redisson 4.7.0 (Maven), Redis 8.2.3: Java holds for 20 s at most and unlocks after 2 s, while Node
#           waits; for the names order:7 and order:{7}.
# Guess:    its README says that it works together with Java's locks, so both names do.
# Seen:     both exclude. But Redisson leaves a name alone that has a brace anywhere, node-redisson only one that begins with a brace. So
#           their channels differ, redisson_lock__channel:order:{7} and redisson_lock__channel:{order:{7}}, and Node sleeps until the
#           lease ends that it saw.
# Matters:  names get braces when a lock moves to a cluster, and then the waits grow from milliseconds to 30 s, without an error.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
node_packages node-redisson@1.0.4 ioredis@5.8.2
cat >waiter.js <<'END'
const { Redisson } = require('node-redisson');
const redisson = new Redisson({ redis: { options: { host: '127.0.0.1', port: Number(process.argv[2]) } } });
const lock = redisson.getLock(process.argv[3]);
(async () => {
  await redisson.commandExecutor.redis.ping();
  console.log('waits');
  await lock.lock();
  console.log('in');
  await lock.unlock();
  process.exit(0);
})();
END
redisson 4.7.0 <<'END'
for (String name : new String[] {"order:7", "order:{7}"}) {
    RLock lock = one.getLock(name);
    lock.lock(20, TimeUnit.SECONDS);
    Process node = new ProcessBuilder("node", "waiter.js", args[0], name).redirectError(ProcessBuilder.Redirect.INHERIT).start();
    var lines = node.inputReader();
    lines.readLine();
    Thread.sleep(2_000);
    lock.unlock();
    long start = System.nanoTime();
    System.out.println(name + ": " + lines.readLine() + " within 5 s: " + (millisecondsSince(start) < 5_000));
    node.waitFor();
}
END
expect java_main "$port" <<'END'
order:7: in within 5 s: true
order:{7}: in within 5 s: false
END
