#!/usr/bin/env bash
# Verrou: in its memory store, whoever gets a lock after its lease has ended cannot release or extend it, and the one before can free it
#
# Run:      @verrou/core 0.5.2 with ioredis 5.8.2 (npm), Redis 8.2.3: one has a lock with a lease of three seconds, another one gets it
#           after five, extends it, and a third asks. Then the first releases, and the third asks again. And a lock is released by force,
#           and got, released and asked for. With the memory store and the Redis store.
# Guess:    the same with both: there is "a consistent API across all drivers", so that tests can be run in memory. The first is told that
#           the lock is not his.
# Seen:     in memory the owner is written when the entry is made, and an entry whose lease has ended, or that was released by force, goes
#           to the next one as it is. So the first still is the owner: his late release lets the third in, beside the second.
# Matters:  just the case that leases are for, and the store that tests are run with: there a correct program fails, and one that releases
#           too late passes. The owner has to be set by the same step that grants.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
node_packages @verrou/core@0.5.2 ioredis@5.8.2
cat >main.mjs <<'END'
import { setTimeout as sleep } from 'node:timers/promises';
import { Verrou } from '@verrou/core';
import { memoryStore } from '@verrou/core/drivers/memory';
import { redisStore } from '@verrou/core/drivers/redis';
import Redis from 'ioredis';

const connection = new Redis(Number(process.argv[2]));
const verrou = new Verrou({
  default: 'redis',
  stores: { redis: { driver: redisStore({ connection }) }, memory: { driver: memoryStore() } },
});

async function report(what, call) {
  const result = await call().then((got) => got ?? 'done', (error) => error.code);
  console.log(`  ${what}: ${result}`);
}

for (const store of ['redis', 'memory']) {
  console.log(`${store}:`);
  const lock = (name, lease) => verrou.use(store).createLock(name, lease);
  const first = lock('report', 3000), second = lock('report', 60_000), third = lock('report', 60_000);
  await report('first gets it', () => first.acquireImmediately());
  await report('second, at once', () => second.acquireImmediately());
  await sleep(5000);
  await report('second, after 5 s', () => second.acquireImmediately());
  await report('second extends', () => second.extend());
  await report('third asks', () => third.acquireImmediately());
  await report('first releases', () => first.release());
  await report('third asks again', () => third.acquireImmediately());

  const dead = lock('import', null), next = lock('import', null);
  await dead.acquireImmediately();
  await next.forceRelease();
  await report('after a release by force, next gets it', () => next.acquireImmediately());
  await report('and releases', () => next.release());
  await report('another one gets it', () => lock('import', null).acquireImmediately());
}
connection.disconnect();
END
expect node main.mjs "$port" <<'END'
redis:
  first gets it: true
  second, at once: false
  second, after 5 s: true
  second extends: done
  third asks: false
  first releases: E_LOCK_NOT_OWNED
  third asks again: false
  after a release by force, next gets it: true
  and releases: done
  another one gets it: true
memory:
  first gets it: true
  second, at once: false
  second, after 5 s: true
  second extends: E_LOCK_NOT_OWNED
  third asks: false
  first releases: done
  third asks again: true
  after a release by force, next gets it: true
  and releases: E_LOCK_NOT_OWNED
  another one gets it: false
END
