#!/usr/bin/env bash
# redis-semaphore, effect-distributed-lock: whoever asks with a shorter timeout throws out those with a longer one, who hold and renew
#
# Run:      redis-semaphore 5.8.0 and effect-distributed-lock 0.0.11 with ioredis 5.8.2 (npm), Redis 8.2.3: a semaphore of one is held with
#           a timeout of a minute, and renewed in time. Two seconds later somebody asks with one of a minute, and with one of a second.
# Guess:    both are refused: a timeout is how long one's own place lasts without a renewal.
# Seen:     the second is in. A place is stored with the time of its last renewal, not of its end, and each request removes those that are
#           older than its own timeout. In effect-distributed-lock it is enough to ask for the count.
# Matters:  a quick job with a short timeout shares no semaphore with a slow one, and the slow one is told at its next renewal, most of a
#           minute later. A lease's end has to be stored by its holder.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
node_packages redis-semaphore@5.8.0 effect-distributed-lock@0.0.11 effect@3.22.4 ioredis@5.8.2
cat >main.mjs <<'END'
import { setTimeout as sleep } from 'timers/promises';
import { Redis } from 'ioredis';
import semaphores from 'redis-semaphore';
import { Effect, Option } from 'effect';
import { DistributedSemaphore, RedisBacking } from 'effect-distributed-lock';

const redis = new Redis(Number(process.argv[2]));

const semaphore = (lockTimeout) => new semaphores.Semaphore(redis, 'report', 1, { lockTimeout, acquireAttemptsLimit: 1, onLockLost() {} });
const holder = semaphore(60_000);
console.log('redis-semaphore, held:', await holder.tryAcquire());
await sleep(2000);
for (const timeout of [60_000, 1000]) {
  const other = semaphore(timeout);
  console.log(`  asked with ${timeout} ms: ${await other.tryAcquire()}, the holder believes: ${holder.isAcquired}`);
  await other.release();
}
await holder.release();

const program = Effect.gen(function* () {
  const make = (ttl) => DistributedSemaphore.make('report', { limit: 1, ttl });
  const slow = yield* make('60 seconds');
  const quick = yield* make('1 second');
  const asked = (semaphore) => semaphore.withPermitsIfAvailable(1)(Effect.void).pipe(Effect.map(Option.isSome));
  const work = Effect.gen(function* () {
    console.log('effect-distributed-lock, held');
    yield* Effect.sleep('2 seconds');
    console.log('  asked with 60000 ms:', yield* asked(slow));
    console.log('  count with 60000 ms:', yield* slow.currentCount);
    console.log('  count with 1000 ms:', yield* quick.currentCount);
    console.log('  asked with 60000 ms:', yield* asked(slow));
  });
  yield* slow.withPermits(1)(work);
});
await Effect.runPromise(program.pipe(Effect.provide(RedisBacking.layer(redis, { keyPrefix: 'effect:' }))));
redis.disconnect();
END
expect node main.mjs "$port" <<'END'
redis-semaphore, held: true
  asked with 60000 ms: false, the holder believes: true
  asked with 1000 ms: true, the holder believes: true
effect-distributed-lock, held
  asked with 60000 ms: false
  count with 60000 ms: 1
  count with 1000 ms: 0
  asked with 60000 ms: true
END
