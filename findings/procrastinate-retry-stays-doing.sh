#!/usr/bin/env bash
# procrastinate: a job that fails while the next one with its queueing lock is in the queue is "doing" for ever, and blocks that one
#
# Run:      procrastinate 3.10.0 with psycopg 3.3.9 (PyPI), PostgreSQL 16.2 (in pgserver 0.1.4): jobs with a lock and a queueing lock of one
#           name, each of which fails once and is retried after a second. Of "customer-1" there is one job. Of "customer-2" a second one is
#           deferred while the first one runs, which a queueing lock is there to allow.
# Guess:    both customers' jobs succeed: the first of "customer-2" is retried, before or after the second.
# Seen:     those of customer 2 do neither. The retry would put a second job with that queueing lock into the queue, the index refuses it,
#           and the worker logs a UniqueViolation. The job stays "doing" and keeps its lock. It is not among the stalled ones, either: its
#           worker is alive.
# Matters:  a failure that a retry would have mended, at a time when the next job has come already, ends all work for that customer until
#           somebody looks at the table. Going back to a queue needs a place in it, and that can be taken.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

python_packages procrastinate==3.10.0 'psycopg[binary]==3.3.9'
start_postgres member
cat >main.py <<'END'
import asyncio
import sys
import time

import procrastinate
import psycopg

url = f"postgresql://member@127.0.0.1:{sys.argv[1]}/postgres"
for _ in range(200):
    try:
        psycopg.connect(url).close()
        break
    except psycopg.OperationalError:
        time.sleep(0.1)
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
failed = set()


async def defer(customer, number):
    await job.configure(lock=customer, queueing_lock=customer).defer_async(customer=customer, number=number)


@app.task(name="job", retry=procrastinate.RetryStrategy(max_attempts=5, wait=1))
async def job(customer, number):
    if (customer, number) not in failed:
        failed.add((customer, number))
        if customer == "customer-2" and number == 1:
            await defer(customer, 2)
        raise ConnectionError


async def main():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await defer("customer-1", 1)
        await defer("customer-2", 1)
        worker = asyncio.create_task(app.run_worker_async(
            concurrency=2, fetch_job_polling_interval=0.5, install_signal_handlers=False))
        await asyncio.sleep(20)
        for row in await app.job_manager.list_jobs_async():
            print(f"{row.task_kwargs['customer']}, job {row.task_kwargs['number']}: {row.status}")
        print("stalled:", len(list(await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=30))))
        print("the worker runs:", not worker.done())
        worker.cancel()
        await asyncio.wait([worker])


asyncio.run(main())
END
expect python3 main.py "$port" 2>worker.log <<'END'
customer-1, job 1: succeeded
customer-2, job 1: doing
customer-2, job 2: todo
stalled: 0
the worker runs: True
END
