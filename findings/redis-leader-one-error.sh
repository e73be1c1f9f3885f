#!/usr/bin/env bash
# redis-leader, safe-redis-leader: a candidate to whom Redis once answers with an error never asks again, and nobody leads
#
# Run:      redis-leader 0.1.0 and safe-redis-leader 0.0.6 with ioredis 5.8.2 (npm), Redis 8.2.3: a leader with a lease of three seconds, and
#           a candidate who asks each half a second. For two seconds Redis takes no writes, as before and after a failover. When it has taken
#           them for some seconds, the leader stops.
# Guess:    both tell of the errors, and go on: a lease is there for bad times. When the leader stops, the candidate leads.
# Seen:     nobody does. The next try is planned where an answer is read, and not where an error is. With safe-redis-leader the same ends the
#           leader's renewals, so that its lease is over before it stops, and it has no "demoted".
# Matters:  one failover and the service has no leader until its processes are restarted, while each of them listens to "error" and looks
#           well. Who plans the next try in the success of this one has one try.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
node_packages redis-leader@0.1.0 safe-redis-leader@0.0.6 ioredis@5.8.2
cat >main.mjs <<'END'
import { setTimeout as sleep } from 'timers/promises';
import { Redis } from 'ioredis';
import RedisLeader from 'redis-leader';
import safe from 'safe-redis-leader';

const admin = new Redis(Number(process.argv[2]));
const libraries = {
  'redis-leader': async (key) => new RedisLeader(new Redis(Number(process.argv[2])), { key, ttl: 3000, wait: 500 }),
  'safe-redis-leader': (key) =>
    safe.createSafeRedisLeader({ asyncRedis: new Redis(Number(process.argv[2])), key, ttl: 3000, wait: 500 }),
};

for (const [library, make] of Object.entries(libraries)) {
  for (const readOnly of [false, true]) {
    const key = `${library}-${readOnly}`;
    const events = { leader: [], candidate: [] };
    const members = {};
    for (const role of Object.keys(events)) {
      members[role] = await make(key);
      for (const event of ['elected', 'revoked', 'demoted', 'error']) {
        members[role].on(event, () => events[role].includes(event) || events[role].push(event));
      }
      await members[role].elect();
      await sleep(1000);
    }
    if (readOnly) {
      await admin.replicaof('127.0.0.1', 1);
    }
    await sleep(2000);
    await admin.replicaof('NO', 'ONE');
    await sleep(6000);
    console.log(`${library}, ${readOnly ? 'read-only for two seconds' : 'undisturbed'}: somebody leads: ${await admin.dbsize() > 0}`);
    await members.leader.stop();
    await sleep(6000);
    const ended = events.leader.includes('revoked') || events.leader.includes('demoted');
    console.log(`  the leader stops; it was told that it leads no more: ${ended}`);
    console.log(`  six seconds later: somebody leads: ${await admin.dbsize() > 0}, the candidate's events: ${events.candidate}`);
    await members.candidate.stop();
    await admin.flushall();
  }
}
process.exit(0);
END
expect node main.mjs "$port" <<'END'
redis-leader, undisturbed: somebody leads: true
  the leader stops; it was told that it leads no more: true
  six seconds later: somebody leads: true, the candidate's events: elected
redis-leader, read-only for two seconds: somebody leads: true
  the leader stops; it was told that it leads no more: true
  six seconds later: somebody leads: false, the candidate's events: error
safe-redis-leader, undisturbed: somebody leads: true
  the leader stops; it was told that it leads no more: true
  six seconds later: somebody leads: true, the candidate's events: elected
safe-redis-leader, read-only for two seconds: somebody leads: false
  the leader stops; it was told that it leads no more: false
  six seconds later: somebody leads: false, the candidate's events: error
END
