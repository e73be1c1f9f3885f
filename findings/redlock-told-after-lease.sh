#!/usr/bin/env bash
# redlock for Node: the signal that a lock is lost comes more than half a second after its lease has ended
#
# Run:      redlock 5.0.0-beta.2 and its fork @sesamecare-oss/redlock 1.4.0 with ioredis 6.0.0 (npm), Redis 8.2.3: using() with a lease of
#           three seconds. The key is lost at once, as in a failover, and another one gets the lock. Half a second after the lease the
#           section looks at its signal; then it waits for it. The same with retryCount: 0 for the object, and 10 in the call.
# Guess:    the signal tells that the lock is lost. It comes with the first extension that finds another owner, half a second before the
#           lease ends, or with its end.
# Seen:     retryCount is for extensions and releases, too: a key that is another's is asked for eleven times, two seconds on average, of
#           which one and a half are beyond the lease. Then using() takes as long again, for a release that cannot succeed.
# Matters:  that signal is what the section has to stop by. With retryCount: 0 for the object, and the patience in each call, it has come
#           by then.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
node_packages redlock@5.0.0-beta.2 @sesamecare-oss/redlock@1.4.0 ioredis@6.0.0
cat >main.js <<'END'
const { setTimeout: sleep } = require('timers/promises');
const Redis = require('ioredis');
const { default: Redlock } = require('redlock');
const { Redlock: Fork } = require('@sesamecare-oss/redlock');
const lease = 3000;

const report = async (redis, name, redlock, settings) => {
  const lines = [`${name}:`];
  await redlock.using([name], lease, settings, async (signal) => {
    const begin = Date.now();
    await redis.del(name);
    lines.push(`  another one gets it: ${await redis.set(name, 'other', 'PX', 60000, 'NX')}`);
    await sleep(begin + lease + 500 - Date.now());
    lines.push(`  half a second after the lease: aborted: ${signal.aborted}`);
    while (!signal.aborted) {
      await sleep(20);
    }
    lines.push('  later: aborted: true');
  }).catch((error) => lines.push(`  using(): ${error.name}`));
  return lines.join('\n');
};

(async () => {
  const redis = new Redis(Number(process.argv[2]));
  const reports = [
    report(redis, 'redlock', new Redlock([redis]), {}),
    report(redis, 'fork', new Fork([redis]), {}),
    report(redis, 'redlock, no retries', new Redlock([redis], { retryCount: 0 }), { retryCount: 10 }),
  ];
  console.log((await Promise.all(reports)).join('\n'));
  redis.disconnect();
})();
END
expect node main.js "$port" <<'END'
redlock:
  another one gets it: OK
  half a second after the lease: aborted: false
  later: aborted: true
  using(): ExecutionError
fork:
  another one gets it: OK
  half a second after the lease: aborted: false
  later: aborted: true
  using(): ExecutionError
redlock, no retries:
  another one gets it: OK
  half a second after the lease: aborted: true
  later: aborted: true
  using(): ExecutionError
END
