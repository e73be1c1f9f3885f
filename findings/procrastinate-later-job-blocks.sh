#!/usr/bin/env bash
# procrastinate: a job that is scheduled for tomorrow, or failed and is to be tried again then, blocks all later jobs with its lock
#
# Run:      procrastinate 3.10.0 with psycopg 3.3.9 (PyPI), PostgreSQL 16.2 (in pgserver 0.1.4): two jobs with the lock of a customer. The first
#           one is scheduled for tomorrow; of another customer's it has failed, and is retried tomorrow. The same without a lock. A worker
#           runs what is due.
# Guess:    the second ones run: a lock keeps jobs from running at the same time, and nothing of those customers runs.
# Seen:     they wait for a day, though they are due and the worker is idle. A job is not fetched while an earlier one with its lock has
#           not ended, whenever that one is due.
# Matters:  one mail that is planned for next month, or one failure with a long pause, stops all work for that customer, and no job is
#           marked as failed or late. Whoever wants a mutex gets a queue: first in, first out, at the speed of its slowest member.
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


@app.task(name="mail")
async def mail(what):
    print("runs:", what)


@app.task(name="fetch", retry=procrastinate.RetryStrategy(max_attempts=3, wait=86400))
async def fetch(what):
    print("runs:", what)
    raise ConnectionError


async def work():
    await app.run_worker_async(wait=False, listen_notify=False, install_signal_handlers=False)


async def main():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for lock in (None, "customer-1"):
            await mail.configure(lock=lock, schedule_in={"days": 1}).defer_async(what=f"lock {lock}: tomorrow")
            await mail.configure(lock=lock).defer_async(what=f"lock {lock}: now")
        for lock in (None, "customer-2"):
            await fetch.configure(lock=lock).defer_async(what=f"lock {lock}: fails")
        await work()
        for lock in (None, "customer-2"):
            await mail.configure(lock=lock).defer_async(what=f"lock {lock}: after the failure")
        await work()
        for job in await app.job_manager.list_jobs_async(status="todo"):
            print("waits:", job.task_kwargs["what"])


asyncio.run(main())
END
expect python3 main.py "$port" 2>worker.log <<'END'
runs: lock None: now
runs: lock None: fails
runs: lock customer-2: fails
runs: lock None: after the failure
waits: lock None: tomorrow
waits: lock customer-1: tomorrow
waits: lock customer-1: now
waits: lock None: fails
waits: lock customer-2: fails
waits: lock customer-2: after the failure
END
