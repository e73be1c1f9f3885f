#!/usr/bin/env bash
# node-redis-warlock: with a client that has a key prefix, a lock can be taken and released, and never be prolonged
#
# Run:      node-redis-warlock 1.0.2 with redis 3.1.2, and with ioredis 5.8.2 (npm), Redis 8.2.3: a lock of five seconds is prolonged to a
#           minute by touch(), and released. Each client as it is, and with a prefix for its keys.
# Guess:    no difference but the key's name: the prefix is the client's business, and lock() and unlock() work with it.
# Seen:     with a prefix, touch() says 0, as for a lock that somebody else has, and the lease stays. Its script gets the lease and the
#           lock's value as if they were keys, and the client puts the prefix before those, too.
# Matters:  no error, and an answer that means that the lock is lost, while one has it and then releases it. What is declared as a key gets
#           changed on the way, by a prefix here, and decides about the slot in a cluster.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
node_packages node-redis-warlock@1.0.2 redis@3.1.2 ioredis@5.8.2
cat >main.js <<'END'
const { promisify } = require('util');
const Redis = require('ioredis');
const redis = require('redis');
const Warlock = require('node-redis-warlock');

const port = Number(process.argv[2]);

async function lockTouchUnlock(name, client) {
  const warlock = Warlock(client);
  const id = await new Promise((resolve, reject) => {
    warlock.lock(name, 5000, (error, unlock, id) => (unlock ? resolve(id) : reject(error)));
  });
  const touched = await warlock.touch(name, id, 60_000);
  const left = await promisify(client.pttl).call(client, `${name}:lock`);
  const unlocked = await promisify(warlock.unlock)(name, id);
  console.log(`${name}: touch: ${touched}, lease: ${left > 5000 ? 'a minute' : 'five seconds'}, unlock: ${unlocked}`);
  client.quit();
}

(async () => {
  await lockTouchUnlock('redis', redis.createClient({ port }));
  await lockTouchUnlock('redis, prefix', redis.createClient({ port, prefix: 'shop:' }));
  await lockTouchUnlock('ioredis', new Redis({ port }));
  await lockTouchUnlock('ioredis, keyPrefix', new Redis({ port, keyPrefix: 'shop:' }));
})();
END
expect node main.js "$port" 2>node.log <<'END'
redis: touch: OK, lease: a minute, unlock: 1
redis, prefix: touch: 0, lease: five seconds, unlock: 1
ioredis: touch: OK, lease: a minute, unlock: 1
ioredis, keyPrefix: touch: 0, lease: five seconds, unlock: 1
END
