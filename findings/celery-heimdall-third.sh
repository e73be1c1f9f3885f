#!/usr/bin/env bash
# celery-heimdall: the second task of a unique kind is refused, and thereby lets the third one run beside the first
#
# Run:      celery-heimdall 1.0.1 and Celery 5.7.0 with redis-py 8.1.0 (PyPI), Redis 8.2.3: a task with unique=True that takes six seconds.
#           While it runs, the same is sent by delay(), by send_task(), as from a program without the task's code, and by delay() again.
# Guess:    one run: delay() asks for the lock before it sends anything, the worker asks for it before it runs what was sent otherwise.
# Seen:     the first delay() returns the running task's result. The worker does not run the one from send_task() either, but that ends,
#           too, and each task that ends deletes the lock. The second delay() sends a task, which runs beside the first.
# Matters:  a refusal that releases the lock it was refused for. After each of them the next one is let in, as many as there are workers.
#           What has not taken a lock must not release it, and a key that is deleted should be compared with one's own value.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages celery-heimdall==1.0.1 celery==5.7.0 redis==8.1.0
cat >tasks.py <<'END'
import os
import time

from celery import Celery
from celery_heimdall import HeimdallTask

app = Celery("tasks", broker=os.environ["REDIS_URL"], backend=os.environ["REDIS_URL"])


@app.task(base=HeimdallTask, heimdall={"unique": True, "unique_timeout": 600}, name="tasks.report")
def report(log):
    with open(log, "a") as file:
        print("begins", file=file, flush=True)
        time.sleep(6)
        print("ends", file=file, flush=True)
END
cat >main.py <<'END'
import time

from tasks import app, report


def lines():
    try:
        with open("log") as file:
            return file.read().split()
    except FileNotFoundError:
        return []


first = report.delay("log")
while not lines():
    time.sleep(0.1)
print("delay() returns the running one:", report.delay("log") == first)
print("send_task():", app.send_task("tasks.report", args=["log"]).get(timeout=60))
third = report.delay("log")
print("delay() returns the running one:", third == first)
third.get(timeout=60)
print(*lines())
END
export REDIS_URL=redis://127.0.0.1:$port/0
run python3 -m celery -A tasks worker --pool=threads -c 4
expect timeout 200 python3 main.py <<'END'
delay() returns the running one: True
send_task(): None
delay() returns the running one: False
begins begins ends ends
END
