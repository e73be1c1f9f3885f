#!/usr/bin/env bash
# ioredis-mock: set(key, value, 'px', ms, 'nx') in lower case takes every lock, for good
#
# Run:      ioredis-mock 8.13.1 and ioredis 5.11.1 (npm), Redis 8.2.3: the same two SETs of one key by two owners, options in lower and in
#           upper case.
# Guess:    Redis does not care about case, so neither does what stands in for it. Or it refuses what it does not know.
# Seen:     the mock passes over options in lower case without a word: the second owner gets OK and overwrites the first, and the key has
#           no expiry.
# Matters:  a test of a lock finds two owners where there is one, or, if it only tests the happy way, nothing at all.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
node_packages ioredis@5.11.1 ioredis-mock@8.13.1
cat >main.js <<'END'
const Redis = require('ioredis');
const Mock = require('ioredis-mock');
(async () => {
  for (const [name, client] of [['Redis', new Redis(Number(process.argv[2]))], ['mock', new Mock()]]) {
    for (const [px, nx] of [['PX', 'NX'], ['px', 'nx']]) {
      await client.del('lock');
      await client.set('lock', 'first', px, 60000, nx);
      const second = await client.set('lock', 'second', px, 60000, nx);
      console.log(`${name}, ${nx}: the second got ${second}, the owner is ${await client.get('lock')}, expires: ${(await client.pttl('lock')) > 0}`);
    }
  }
  process.exit(0);
})();
END
expect node main.js "$port" <<'END'
Redis, NX: the second got null, the owner is first, expires: true
Redis, nx: the second got null, the owner is first, expires: true
mock, NX: the second got null, the owner is first, expires: true
mock, nx: the second got OK, the owner is second, expires: false
END
