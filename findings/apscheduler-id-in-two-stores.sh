#!/usr/bin/env bash
# APScheduler: two jobs with one id in two job stores are one job for max_instances, and the second is skipped while the first runs
#
# Run:      APScheduler 3.11.3 (PyPI): a BackgroundScheduler with two job stores and one executor. Each store has a job for the same moment
#           that takes two seconds, with one id and with two; then with one id and an executor for each store.
# Guess:    four runs: an id is unique within its store, the scheduler takes both jobs, and max_instances is a limit for each job.
# Seen:     the executor counts running instances by id alone. Of two jobs with one id the second is skipped, with a warning, and one that
#           is meant for a single moment is gone from its store, too. With an executor for each, both run.
# Matters:  a store for each tenant or department, with the same ids in them, loses runs, whenever two of them take place at once: that grows
#           with the load. A key needs all of the parts that make it unique where it is used.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

python_packages apscheduler==3.11.3
cat >main.py <<'END'
import logging
import time
from datetime import datetime, timedelta

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.background import BackgroundScheduler

logging.getLogger("apscheduler").setLevel(logging.ERROR)
ran = []


def report(store):
    ran.append(store)
    time.sleep(2)


for text, ids, executors in [
    ("two ids", ("a-report", "b-report"), ("default", "default")),
    ("one id", ("report", "report"), ("default", "default")),
    ("one id, two executors", ("report", "report"), ("default", "second")),
]:
    ran.clear()
    scheduler = BackgroundScheduler(
        jobstores={"a": MemoryJobStore(), "b": MemoryJobStore()},
        executors={"default": ThreadPoolExecutor(10), "second": ThreadPoolExecutor(10)},
    )
    scheduler.start()
    soon = datetime.now() + timedelta(seconds=1)
    for store, id, executor in zip("ab", ids, executors):
        scheduler.add_job(report, "date", run_date=soon, args=[store], id=id, jobstore=store, executor=executor)
    print(f"{text}: jobs: {len(scheduler.get_jobs())}", end=", ")
    time.sleep(5)
    print(f"ran: {len(ran)}, left: {len(scheduler.get_jobs())}")
    scheduler.shutdown()
END
expect python3 main.py <<'END'
two ids: jobs: 2, ran: 2, left: 0
one id: jobs: 2, ran: 1, left: 0
one id, two executors: jobs: 2, ran: 2, left: 0
END
