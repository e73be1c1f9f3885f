#!/usr/bin/env bash
# simple-redis-mutex: with two Redis servers, whoever waits on the second one is not woken
#
# Run:      simple-redis-mutex 3.0.0 with redis 6.3.1 (npm), Redis 8.2.3: one process with a client for each of two servers. On each a lock
#           is held, another call waits for it, and it is released after half a second.
# Guess:    both waiters have it then: each release is published, and the subscriber is a duplicate of the client that was passed.
# Seen:     the subscriber is a variable of the module, and that of the first client serves all. The second waiter has the lock at its next
#           poll, after ten seconds, though the message was published. With pollingInterval: null it would not have it at all.
# Matters:  a lock that works, and takes ten seconds in place of none as soon as a second server is there, on whichever was used last. What
#           belongs to a connection has to be kept with it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
first=$port
start_server redis-8.2
node_packages simple-redis-mutex@3.0.0 redis@6.3.1
cat >main.js <<'END'
const { setTimeout: sleep } = require('timers/promises');
const { createClient } = require('redis');
const { lock } = require('simple-redis-mutex');

(async () => {
  for (const [name, port] of [['first', process.argv[2]], ['second', process.argv[3]]]) {
    const client = createClient({ url: `redis://127.0.0.1:${port}` });
    await client.connect();
    let listeners;
    const release = await lock(client, 'report', { timeout: 60_000 });
    const waiter = lock(client, 'report', { timeout: 60_000 });
    await sleep(500);
    const start = Date.now();
    listeners = (await client.pubSubNumSub('@simple-redis-mutex:locks-releases'))['@simple-redis-mutex:locks-releases'];
    await release();
    await (await waiter)();
    const waited = Date.now() - start;
    console.log(`${name} server: subscribers: ${listeners}, waited ${waited < 5000 ? 'less' : 'more'} than 5 s after the release`);
  }
  process.exit();
})();
END
expect node main.js "$first" "$port" <<'END'
first server: subscribers: 1, waited less than 5 s after the release
second server: subscribers: 0, waited more than 5 s after the release
END
