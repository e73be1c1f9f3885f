#!/usr/bin/env bash
# bottleneck: in a Group, whoever works for longer than timeout is not alone, with maxConcurrent: 1
#
# Run:      bottleneck 2.19.5 with ioredis 5.8.2 (npm), Redis 8.2.3: a Group has maxConcurrent: 1. Under a key of it a job of ten seconds
#           begins, and another one is scheduled after six. timeout is two seconds, or a minute. In memory, and in Redis, where the second
#           comes from another Group with the same id, as from another process. In memory also without a Group.
# Guess:    the second waits for the first. "Limiters that have been idle for longer than 5 minutes are deleted", and one whose job runs is
#           not idle: the event "idle" comes when "no jobs are currently running anywhere".
# Seen:     idle means that no job began for as long as timeout. Then the limiter is deleted together with its count, in memory and in
#           Redis, and key() makes a new one, with all its places.
# Matters:  a Group is how one job per customer is done, and the time is five minutes unless set. All jobs are exclusive but the longest. A
#           cleaner has to look at who is inside, not at when somebody entered.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
node_packages bottleneck@2.19.5 ioredis@5.8.2
cat >main.js <<'END'
const { setTimeout: sleep } = require('timers/promises');
const Bottleneck = require('bottleneck');

async function secondJob(first, second) {
  let works = true;
  first().schedule(() => sleep(10_000)).then(() => (works = false));
  await sleep(6000);
  return second().schedule(async () => (works ? 'beside the first' : 'after it'));
}

function inMemory(timeout) {
  const group = new Bottleneck.Group({ maxConcurrent: 1, timeout });
  return secondJob(() => group.key('customer'), () => group.key('customer'));
}

function inRedis(timeout) {
  const clientOptions = { port: Number(process.argv[2]) };
  const group = () => new Bottleneck.Group({ id: `timeout-${timeout}`, maxConcurrent: 1, timeout, datastore: 'ioredis', clientOptions });
  const one = group(), other = group();
  return secondJob(() => one.key('customer'), () => other.key('customer'));
}

(async () => {
  const alone = new Bottleneck({ maxConcurrent: 1 });
  const results = {
    'in memory, no Group': secondJob(() => alone, () => alone),
    'in memory, a minute': inMemory(60_000),
    'in memory, two seconds': inMemory(2000),
    'in Redis, a minute': inRedis(60_000),
    'in Redis, two seconds': inRedis(2000),
  };
  for (const [name, result] of Object.entries(results)) {
    console.log(`${name}: the second works ${await result}`);
  }
  process.exit();
})();
END
expect node main.js "$port" <<'END'
in memory, no Group: the second works after it
in memory, a minute: the second works after it
in memory, two seconds: the second works beside the first
in Redis, a minute: the second works after it
in Redis, two seconds: the second works beside the first
END
