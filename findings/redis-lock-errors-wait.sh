#!/usr/bin/env bash
# redis-lock for Node: what Redis refuses with an error is waited for, as if somebody else had the lock, and nobody is told
#
# Run:      redis-lock 1.0.0 with node-redis 4.7.1 (npm), Redis 8.2.3: a lock is taken and released; then the server is made a replica, as in
#           a failover, and the client's connection stays. lock("report") and a SET of its own, ten seconds; then it is a primary again.
# Guess:    the SET is refused with READONLY, and so is lock(): its promise rejects, and the caller can reconnect or give up.
# Seen:     one catch is for both: "not mine" is an error of its own there, and any other one is retried like that, every 50 ms. There
#           is no limit of tries or time. Once the server is a primary, the promise resolves.
# Matters:  every caller of an instance that talks to the wrong server hangs, with nothing in the log, and it looks like a dead holder. Whether
#           another one has the lock, and whether that could be asked, are two answers.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
other=$port
start_server redis-8.2
node_packages redis-lock@1.0.0 redis@4.7.1
cat >main.js <<'END'
const { setTimeout: sleep } = require('timers/promises');
const { createClient } = require('redis');
const redisLock = require('redis-lock');

(async () => {
  const [port, other] = process.argv.slice(2);
  const client = createClient({ url: `redis://127.0.0.1:${port}` });
  await client.connect();
  const lock = redisLock(client);
  const done = await lock('report');
  await done();
  console.log('primary: lock(): has it');
  await client.sendCommand(['REPLICAOF', '127.0.0.1', other]);
  const set = await client.set('lock.other', 'me', { NX: true, PX: 5000 }).catch((error) => error.message.split(' ')[0]);
  const waiting = lock('report').then(() => 'has it', (error) => error.message.split(' ')[0]);
  console.log(`replica: set(): ${set}, lock() after ten seconds: ${await Promise.race([waiting, sleep(10000, 'waits')])}`);
  await client.sendCommand(['REPLICAOF', 'NO', 'ONE']);
  console.log(`primary: lock(): ${await Promise.race([waiting, sleep(60000, 'waits')])}`);
  process.exit(0);
})();
END
expect node main.js "$port" "$other" <<'END'
primary: lock(): has it
replica: set(): READONLY, lock() after ten seconds: waits
primary: lock(): has it
END
