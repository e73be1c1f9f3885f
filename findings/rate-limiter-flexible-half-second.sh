#!/usr/bin/env bash
# rate-limiter-flexible: with a duration of half a second, RateLimiterRedis refuses a key for ever, and RateLimiterMemory for half a second
#
# Run:      rate-limiter-flexible 11.4.0 with ioredis 6.0.0 (npm), Redis 8.2.3: one point in a duration of 0.5 s is asked for twice, and
#           again five seconds later, of RateLimiterMemory and RateLimiterRedis. The same with 1.5 s.
# Guess:    the third is let in. Or the constructor refuses 0.5: it does look at the number, "must be a finite, non-negative number".
# Seen:     in Redis the duration is cut to whole seconds: 1.5 is one, 0.5 is zero, and zero is "never expires". The key has no expiry, and
#           msBeforeNext is -1, which setTimeout takes for "at once".
# Matters:  tests pass with the memory's limiter, or as the insurance for Redis, and the first user who is refused in production is locked
#           out until somebody deletes the key. Where zero means never, a number must not be rounded down to it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
node_packages rate-limiter-flexible@11.4.0 ioredis@6.0.0
cat >main.js <<'END'
const { setTimeout: sleep } = require('timers/promises');
const Redis = require('ioredis');
const { RateLimiterMemory, RateLimiterRedis } = require('rate-limiter-flexible');

(async () => {
  const redis = new Redis(Number(process.argv[2]));
  const ask = (limiter) => limiter.consume('user').then(() => 'yes', (no) => (no.msBeforeNext < 0 ? 'no, without an end' : 'no'));
  for (const duration of [0.5, 1.5]) {
    for (const [name, limiter] of [
      ['memory', new RateLimiterMemory({ points: 1, duration })],
      ['Redis', new RateLimiterRedis({ storeClient: redis, keyPrefix: `in ${duration}`, points: 1, duration })],
    ]) {
      const answers = [await ask(limiter), await ask(limiter)];
      await sleep(5000);
      console.log(`${name}, ${duration} s: ${answers.join(', then ')}, five seconds later ${await ask(limiter)}`);
    }
  }
  redis.disconnect();
})();
END
expect node main.js "$port" <<'END'
memory, 0.5 s: yes, then no, five seconds later yes
Redis, 0.5 s: yes, then no, without an end, five seconds later no, without an end
memory, 1.5 s: yes, then no, five seconds later yes
Redis, 1.5 s: yes, then no, five seconds later yes
END
