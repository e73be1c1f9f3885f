#!/usr/bin/env bash
# node-resque: of three equal jobs with JobLock in a second, the third is lost, and its refusal lets a fourth run beside the first
#
# Run:      node-resque 9.7.1 with ioredis 5.8.2 (npm), Redis 8.2.3: a job with the plugin JobLock takes six seconds. Four workers and a
#           scheduler. It is put into the queue three times at once with the same arguments, and a fourth time when those have been seen.
# Guess:    four runs, one after the other: JobLock puts a job back and tries later while its equal is running.
# Seen:     "later" is an entry in a schedule of whole seconds, which refuses a second equal one: the third job fails with that error and is
#           in the list of failed ones. A job that fails gives up the lock, also if it never had it: the fourth runs beside the first.
# Matters:  what was put in to have one run at a time loses jobs and stops excluding as soon as two wait. A lock has to be released by who
#           took it, and compared with a value that says so.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
node_packages node-resque@9.7.1 ioredis@5.8.2
cat >main.js <<'END'
const { setTimeout: sleep } = require('timers/promises');
const { Plugins, Queue, Scheduler, Worker } = require('node-resque');

(async () => {
  const connection = { pkg: 'ioredis', host: '127.0.0.1', port: Number(process.argv[2]), database: 0 };
  let running = 0, most = 0, ran = 0, seen = 0;
  const errors = [];
  const jobs = {
    report: {
      plugins: [Plugins.JobLock],
      perform: async () => {
        most = Math.max(most, ++running);
        await sleep(6000);
        running--;
        ran++;
      },
    },
  };
  const workers = [];
  for (let i = 0; i < 4; i++) {
    const worker = new Worker({ connection, queues: ['reports'], timeout: 50, name: `worker-${i}` }, jobs);
    worker.on('job', () => seen++);
    worker.on('failure', (queue, job, error) => errors.push(error.message));
    await worker.connect();
    workers.push(worker);
  }
  const scheduler = new Scheduler({ connection, timeout: 200 }, jobs);
  await scheduler.connect();
  const queue = new Queue({ connection }, jobs);
  await queue.connect();

  // early in a second, for all three to be put off within the same one
  await sleep(1000 - ((Date.now() + 450) % 1000));
  for (let i = 0; i < 3; i++) await queue.enqueue('reports', 'report', ['2026-11']);
  for (const worker of workers) worker.start();
  while (seen < 3) await sleep(10);
  await sleep(300);
  await queue.enqueue('reports', 'report', ['2026-11']);
  await sleep(1000);
  scheduler.start();

  for (let quiet = 0; quiet < 50; ) {
    await sleep(100);
    quiet = running === 0 && (await queue.length('reports')) === 0 && (await queue.timestamps()).length === 0 ? quiet + 1 : 0;
  }
  console.log(`ran: ${ran}, at most at a time: ${most}, failed: ${await queue.failedCount()}`);
  console.log(...errors);
  await Promise.all([...workers, scheduler, queue].map((each) => each.end()));
})();
END
expect node main.js "$port" <<'END'
ran: 3, at most at a time: 2, failed: 1
Job already enqueued at this time with same arguments
END
