#!/usr/bin/env bash
# redlock-universal: using() extends a lease of five seconds once in four, and one of 1.2 s hundreds of times a second, without a pause
#
# Run:      redlock-universal 0.8.5 with ioredis 6.0.0 (npm), Redis 8.2.3: using() for five seconds, with leases of 5 s and 1.2 s. Redis
#           counts the scripts.
# Guess:    an extension after four fifths of the lease: one or two, and about five.
# Seen:     if four fifths are a second or less, the next extension is not delayed but sent at once, and each one that succeeds sends the
#           next: as many as Redis answers.
# Matters:  each holder of a short lease keeps one connection and a part of Redis busy, and slows down the extensions of all others. A least
#           pause between two extensions has to be waited for, not skipped.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
node_packages redlock-universal@0.8.5 ioredis@6.0.0
cat >main.js <<'END'
const { setTimeout: sleep } = require('timers/promises');
const Redis = require('ioredis');
const { createLock, IoredisAdapter } = require('redlock-universal');

(async () => {
  const redis = new Redis(Number(process.argv[2]));
  const scripts = async () => {
    const calls = [...(await redis.info('commandstats')).matchAll(/cmdstat_eval(?:sha)?:calls=(\d+)/g)];
    return calls.reduce((sum, match) => sum + Number(match[1]), 0);
  };
  for (const ttl of [5000, 1200]) {
    const lock = createLock({ adapter: new IoredisAdapter(redis), key: `order-${ttl}`, ttl });
    const before = await scripts();
    await lock.using(() => sleep(5000));
    const sent = (await scripts()) - before;
    console.log(`lease of ${ttl} ms: ${sent < 20 ? 'fewer than 20' : sent > 500 ? 'more than 500' : sent} scripts in 5 s`);
  }
  redis.disconnect();
})();
END
expect node main.js "$port" <<'END'
lease of 5000 ms: fewer than 20 scripts in 5 s
lease of 1200 ms: more than 500 scripts in 5 s
END
