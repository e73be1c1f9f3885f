#!/usr/bin/env bash
# Medusa: an execute() of two keys that times out keeps the one that was free, for a minute; acquire() keeps it for ever
#
# Run:      @medusajs/locking-redis 2.21.2 with ioredis 5.11.0 (npm), Redis 8.2.3: while a job holds "stock", another one asks for
#           execute(["cart", "stock"]) with a timeout of one second. The first one ends, and others ask for "cart" and "stock". The same with a
#           timed-out execute(["stock"]), and with acquire(["cart", "stock"]), which does not wait.
# Guess:    whoever is told that it got nothing has nothing, and both keys are free in the end. The source has a step for a call that times
#           out: it hands back what was taken, "rather than leaving them locked for a whole lease".
# Seen:     the keys are asked for side by side, and that step is only done if the last of them was got after all. If it is still taken, those
#           that were got stay. Nobody gets "cart" for the lease of 60 seconds, and no job has it. After acquire() it has no lease at all.
# Matters:  one busy key locks others that nobody uses, and those with them. Whoever takes several locks has to give back each one that it got
#           on each way out, and the way out on which it got some of them is the one to test.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
node_packages @medusajs/locking-redis@2.21.2 @medusajs/framework@2.21.2 ioredis@5.11.0
cat >main.js <<'END'
const Redis = require('ioredis');
const [Provider] = require('@medusajs/locking-redis').default.services;

const redisClient = new Redis(Number(process.argv[2]));
const provider = () => new Provider({ redisClient, prefix: 'lock:', logger: console }, {});
const answer = (promise) => promise.then((value) => value, (error) => error.message);

async function round(name, ask) {
  let end;
  const ended = new Promise((resolve) => (end = resolve));
  let entered;
  const inside = new Promise((resolve) => (entered = resolve));
  const first = provider().execute(['stock'], async () => {
    entered();
    await ended;
  });
  await inside;
  console.log(`${name}: ${await answer(ask())}`);
  end();
  await first;
  for (const key of ['stock', 'cart']) {
    const got = await answer(provider().execute([key], async () => 'got it', { timeout: 3 }));
    const left = await redisClient.ttl(`lock:${key}`);
    const lease = left === -2 ? '' : left === -1 ? '; it stays for ever' : `; it stays for more than 40 seconds: ${left > 40}`;
    console.log(`then ${key}: ${got}${lease}`);
  }
  await redisClient.flushall();
}

(async () => {
  await round('execute stock', () => provider().execute(['stock'], async () => 'got it', { timeout: 1 }));
  await round('execute cart, stock', () => provider().execute(['cart', 'stock'], async () => 'got it', { timeout: 1 }));
  await round('acquire cart, stock', () => provider().acquire(['cart', 'stock'], { ownerId: 'me' }));
  redisClient.disconnect();
})();
END
expect node main.js "$port" <<'END'
execute stock: Timed-out acquiring lock.
then stock: got it
then cart: got it
execute cart, stock: Timed-out acquiring lock.
then stock: got it
then cart: Timed-out acquiring lock.; it stays for more than 40 seconds: true
acquire cart, stock: Failed to acquire lock for key "stock"
then stock: got it
then cart: Timed-out acquiring lock.; it stays for ever
END
