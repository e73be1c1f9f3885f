#!/usr/bin/env bash
# ioredis: a SET NX that failed with "Command timed out" is sent later, and takes the lock for nobody
#
# Run:      ioredis 6.0.0 and redis 6.3.1 (npm), each with 300 ms for a command, Redis 8.2.3 that cannot be reached at first: SET NX PX
#           fails, half a second later Redis can be reached.
# Guess:    what failed before there was a connection has not run, and does not run any more. node-redis takes it out of its queue.
# Seen:     ioredis' time-out ends the promise alone. The command stays in the queue, and is the first that a new connection sends.
# Matters:  after an outage all locks are taken that were wanted in it, by callers that have long given up, until their leases end. With
#           enableOfflineQueue: false the command fails at once, and for good.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
node_packages ioredis@6.0.0 redis@6.3.1
cat >main.js <<'END'
const net = require('net');
const Redis = require('ioredis');
const { createClient } = require('redis');
const [redis, port] = process.argv.slice(2).map(Number);
const report = async (name, set) => {
  const error = await set.then(() => new Error('none'), (error) => error);
  console.log(`${name}: ${error.message || error.constructor.name}`);
};
(async () => {
  const one = new Redis({ port, commandTimeout: 300 });
  const other = createClient({ url: `redis://127.0.0.1:${port}`, commandOptions: { timeout: 300 } });
  for (const client of [one, other]) {
    client.on('error', () => {}); // it cannot connect
  }
  other.connect();
  await report('ioredis', one.set('lock:ioredis', 'me', 'PX', 60000, 'NX'));
  await report('node-redis', other.set('lock:node-redis', 'me', { PX: 60000, NX: true }));

  // Redis can be reached from now on.
  net.createServer((client) => {
    const server = net.connect(redis, '127.0.0.1');
    client.pipe(server).pipe(client);
  }).listen(port, '127.0.0.1');
  await new Promise((ready) => setTimeout(ready, 500));
  console.log(`then both work: ${await one.ping()} ${await other.ping()}`);
  for (const name of ['ioredis', 'node-redis']) {
    console.log(`owner for ${name}: ${await one.get(`lock:${name}`)}`);
  }
  process.exit(0);
})();
END
expect node main.js "$port" "$(free_port)" <<'END'
ioredis: Command timed out
node-redis: TimeoutError
then both work: PONG PONG
owner for ioredis: me
owner for node-redis: null
END
