#!/usr/bin/env bash
# celery-singleton: a task that retries is never run again, nor is any later one with its arguments
#
# Run:      celery-singleton 0.3.1 with Celery 5.7.0 and redis 8.1.0 (PyPI), Redis 8.2.3: a task with Celery's base, and one with Singleton
#           as base, each with autoretry_for and a failure at the first attempt. Long after the retry of the one each is called again.
# Guess:    the lock spans the retries: the second attempt runs, and then the lock is free.
# Seen:     a retry is sent by apply_async, which finds the lock, the task's own, and takes the retry for a duplicate: it is dropped. The
#           lock ends with success or failure, which this task never comes to, and has no expiry unless set. Later calls get the result of
#           the lost one, whose state is RETRY for good.
# Matters:  one failed connection ends that work for ever, without an error. A lock that a task takes for its own continuation has to
#           know its owner: the value in Redis is the task's id, and nobody compares it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages celery-singleton==0.3.1 celery==5.7.0 redis==8.1.0
cat >main.py <<'END'
import sys
import time
from collections import defaultdict

from celery import Celery, Task
from celery.contrib.testing.worker import start_worker
from celery_singleton import Singleton

app = Celery("finding", broker="memory://", backend="cache+memory://")
app.conf.singleton_backend_url = f"redis://127.0.0.1:{sys.argv[1]}"
attempts = defaultdict(list)


def task(base):
    @app.task(bind=True, base=base, name=base.__name__, autoretry_for=(ConnectionError,), retry_kwargs={"countdown": 1})
    def report(self, day):
        attempts[base].append(self.request.retries)
        if attempts[base] == [0]:
            raise ConnectionError

    return report


def wait(base, number):
    end = time.monotonic() + 60
    while len(attempts[base]) < number and time.monotonic() < end:
        time.sleep(0.1)


tasks = {base: task(base) for base in (Task, Singleton)}
with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False):
    first = {base: tasks[base].delay("monday") for base in tasks}
    wait(Singleton, 1)
    wait(Task, 2)
    time.sleep(5)
    for base in tasks:
        print(f"{base.__name__}: attempts: {attempts[base]}, state: {first[base].state}")
        print(f"  called again: the same task: {tasks[base].delay('monday').id == first[base].id}")
    wait(Task, 3)
    time.sleep(3)
    for base in tasks:
        print(f"  {base.__name__}: attempts: {attempts[base]}")
END
expect python3 main.py "$port" <<'END'
Task: attempts: [0, 1], state: SUCCESS
  called again: the same task: False
Singleton: attempts: [0], state: RETRY
  called again: the same task: True
  Task: attempts: [0, 1, 0]
  Singleton: attempts: [0]
END
