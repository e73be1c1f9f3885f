#!/usr/bin/env bash
# node-redis: a command's timeout and AbortSignal end with the sending of it, and a SET NX to a server that hangs waits for as long as that
#
# Run:      node-redis 6.3.1 and ioredis 5.11.1 (npm), Redis 8.2.3 that is stopped (SIGSTOP) for five seconds: SET NX with a time of 200 ms,
#           by node-redis' commandOptions.timeout, by withAbortSignal, and by ioredis' commandTimeout. Then the two of node-redis without
#           a server.
# Guess:    each fails after 200 ms, and the caller can do something else.
# Seen:     node-redis takes both for the time in its own queue alone: once the command is written, nothing ends it but the reply. It says
#           "OK" when the server goes on. ioredis fails in time. Without a server, where nothing can be written, node-redis fails, too.
# Matters:  a time limit that is there when Redis is down and is not when Redis is slow passes its test. A lock that is had after 200 ms is
#           had after the lease, if need be. A limit needs a race with a timer, and then somebody to release what is got later.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
node_packages redis@6.3.1 ioredis@5.11.1
cat >main.js <<'END'
const { setTimeout: sleep } = require('timers/promises');
const { createClient } = require('redis');
const Redis = require('ioredis');

const port = Number(process.argv[2]);
const pid = Number(process.argv[3]);

(async () => {
  const open = async (commandOptions) => {
    const client = createClient({ url: `redis://127.0.0.1:${port}`, commandOptions });
    client.on('error', () => {});
    await client.connect();
    await client.ping();
    return client;
  };
  const limited = await open({ timeout: 200 });
  const plain = await open();
  const other = new Redis({ port, commandTimeout: 200 });
  await other.ping();
  const ways = [
    ['node-redis, timeout', () => limited.set('lock-1', 'me', { NX: true, PX: 60_000 })],
    ['node-redis, withAbortSignal', () => plain.withAbortSignal(AbortSignal.timeout(200)).set('lock-2', 'me', { NX: true, PX: 60_000 })],
    ['ioredis, commandTimeout', () => other.set('lock-3', 'me', 'PX', 60_000, 'NX')],
  ];
  const report = async (when, ways) => {
    let stopped = true;
    const answers = ways.map(async ([name, set]) => {
      const answer = await set().catch((error) => error.constructor.name);
      return `${when}: ${name}: ${answer}, ${stopped ? 'within five seconds' : 'later'}`;
    });
    await sleep(5000);
    stopped = false;
    return answers;
  };
  process.kill(pid, 'SIGSTOP');
  const hanging = await report('the server hangs', ways);
  process.kill(pid, 'SIGCONT');
  for (const answer of hanging) console.log(await answer);
  other.disconnect();
  process.kill(pid, 'SIGTERM');
  while (limited.isReady || plain.isReady) await sleep(10);
  for (const answer of await report('no server', ways.slice(0, 2))) console.log(await answer);
  limited.destroy();
  plain.destroy();
})();
END
expect timeout 60 node main.js "$port" "${pids[-1]}" <<'END'
the server hangs: node-redis, timeout: OK, later
the server hangs: node-redis, withAbortSignal: OK, later
the server hangs: ioredis, commandTimeout: Error, within five seconds
no server: node-redis, timeout: TimeoutError, within five seconds
no server: node-redis, withAbortSignal: AbortError, within five seconds
END
