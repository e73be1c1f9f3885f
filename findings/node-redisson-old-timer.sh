#!/usr/bin/env bash
# node-redisson: the timer of an earlier wait makes a later one deaf
#
# Run:      node-redisson 1.0.4 (npm), Redis 8.2.3: one process waits for up to 5 s and is in after half a second. It waits again at once,
#           and the holder unlocks after 8 s of a lease of 25 s. The same without the first wait.
# Guess:    the first wait is over and leaves nothing behind.
# Seen:     its timer of 5 s is not stopped. When it fires it unsubscribes from the channel, which is one for the process, under the
#           second wait. That sleeps until the lease ends that it saw.
# Matters:  the busier a lock, the more of these timers: a wake-up that works in every small test fails under load, and only in time, not
#           in exclusion.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
node_packages node-redisson@1.0.4 ioredis@5.8.2
cat >main.js <<'END'
const { Redisson, TimeUnit } = require('node-redisson');
const open = () => new Redisson({ redis: { options: { host: '127.0.0.1', port: Number(process.argv[2]) } } });
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const [holder, waiter] = [open(), open()];

async function wait(patience, lease, unlockAfter) {
  const [held, waiting] = [holder.getLock('order'), waiter.getLock('order')];
  await held.lock(lease, TimeUnit.SECONDS);
  const entered = waiting.tryLock(patience, lease, TimeUnit.SECONDS);
  await sleep(unlockAfter);
  await held.unlock();
  const start = Date.now();
  const got = await entered;
  const woken = got && Date.now() - start < 3000;
  if (got) await waiting.unlock();
  return woken;
}

(async () => {
  console.log('alone, woken:', await wait(60n, 25n, 8000));
  console.log('a short wait, woken:', await wait(5n, 25n, 500));
  console.log('and the next one, woken:', await wait(60n, 25n, 8000));
  process.exit(0);
})();
END
expect node main.js "$port" <<'END'
alone, woken: true
a short wait, woken: true
and the next one, woken: false
END
