#!/usr/bin/env bash
# redis-semaphore: a Semaphore object made once lets a whole process in, and its first release frees the place of all
#
# Run:      redis-semaphore 5.8.0 with ioredis 6.0.0 (npm), Redis 8.2.3: ten tasks of a process share one Semaphore of two. While they work,
#           another process asks for both places, after the first of the ten has released. Then the same with an object for each task.
# Guess:    at most two are in. An object that is made once with its limit, and then shared, is what a semaphore is elsewhere.
# Seen:     all ten are in. Who holds a place is the object, and acquire() adds its identifier to a sorted set, where the second to tenth
#           are the first again. Any release() removes it for all of them.
# Matters:  the object is a place, not the semaphore. Its limit holds between processes, so one task in each is a test that passes. What
#           counts holders needs a name for each holder, or has to refuse one that is there.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
node_packages redis-semaphore@5.8.0 ioredis@6.0.0
cat >main.js <<'END'
const { setTimeout: sleep } = require('timers/promises');
const Redis = require('ioredis');
const { Semaphore } = require('redis-semaphore');

(async () => {
  const redis = new Redis(Number(process.argv[2]));
  const options = { lockTimeout: 60_000, acquireTimeout: 60_000 };

  async function tenTasks(name, semaphoreFor) {
    let inside = 0, most = 0, done = 0;
    let firstReleased;
    const released = new Promise((resolve) => (firstReleased = resolve));
    const task = async () => {
      const semaphore = semaphoreFor();
      await semaphore.acquire();
      most = Math.max(most, ++inside);
      await sleep(done++ === 0 ? 500 : 2000);
      inside--;
      await semaphore.release();
      firstReleased();
    };
    const tasks = Array.from({ length: 10 }, task);
    await released;
    await sleep(200);
    const taken = await redis.zcard(`semaphore:${name}`);
    const still = inside;
    await Promise.all(tasks);
    console.log(`${name}: most inside: ${most}; after the first release ${still} inside, ${taken} places taken`);
  }

  const shared = new Semaphore(redis, 'one object', 2, options);
  await tenTasks('one object', () => shared);
  await tenTasks('an object for each', () => new Semaphore(redis, 'an object for each', 2, options));
  redis.disconnect();
})();
END
expect node main.js "$port" <<'END'
one object: most inside: 10; after the first release 9 inside, 0 places taken
an object for each: most inside: 2; after the first release 2 inside, 2 places taken
END
