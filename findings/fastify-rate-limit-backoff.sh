#!/usr/bin/env bash
# @fastify/rate-limit: exponentialBackoff without Redis tells a client to stay away for a minute, and lets it in again after two seconds
#
# Run:      @fastify/rate-limit 11.2.0 with fastify 5.12.8 and ioredis 5.8.2 (npm), Redis 8.2.3: one request in two seconds, with
#           exponentialBackoff. A client asks seven times, waits for two and a half seconds, and asks again. In memory and in Redis.
# Guess:    refused, in both: each refused request doubles the time, and the last answer said to come again in 64 seconds.
# Seen:     with Redis it is so. In memory the answers are the same, and the client is let in: what is stored and told is the longer time, and
#           what is compared is the window of two seconds.
# Matters:  headers, and a test of them, show a backoff, and it slows down only those who obey them. What a limiter tells and what it
#           enforces have to be one number.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
node_packages @fastify/rate-limit@11.2.0 fastify@5.12.8 ioredis@5.8.2
cat >main.mjs <<'END'
import { setTimeout as sleep } from 'timers/promises';
import rateLimit from '@fastify/rate-limit';
import fastify from 'fastify';
import { Redis } from 'ioredis';

const client = new Redis(Number(process.argv[2]));
for (const [name, options] of [['in memory', {}], ['Redis', { redis: client }]]) {
  const app = fastify();
  await app.register(rateLimit, { max: 1, timeWindow: 2000, exponentialBackoff: true, ...options });
  app.get('/', async () => 'in');
  const ask = async () => {
    const { statusCode, headers } = await app.inject('/');
    return statusCode === 200 ? 'in' : `again in ${headers['retry-after']} s`;
  };
  const answers = [];
  for (let i = 0; i < 7; i++) answers.push(await ask());
  await sleep(2500);
  console.log(`${name}: ${answers.join(', ')}; two and a half seconds later: ${await ask()}`);
  await app.close();
}
client.disconnect();
END
expect node main.mjs "$port" <<'END'
in memory: in, again in 2 s, again in 4 s, again in 8 s, again in 16 s, again in 32 s, again in 64 s; two and a half seconds later: in
Redis: in, again in 2 s, again in 4 s, again in 8 s, again in 16 s, again in 32 s, again in 64 s; two and a half seconds later: again in 128 s
END
