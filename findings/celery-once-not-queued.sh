#!/usr/bin/env bash
# celery-once: a task that could not be sent, or that expired in the queue, is "already queued" for an hour
#
# Run:      celery-once 3.0.1 with Celery 5.6.2 and redis-py 8.1.0 (PyPI), Redis 8.2.3: a QueueOnce task is sent, and two seconds later a worker
#           runs for three; then it is sent again. As it is, with a worker that finds it expired (expires=1), with one that fails, and with
#           a broker that refuses connections.
# Guess:    queued in each case: what is done, dropped or was never sent is not in the queue, and after a failure the lock is released.
# Seen:     the lock is taken before the message is sent, and released by after_return alone, which Celery calls for tasks that have run. An
#           error of the broker leaves it behind, and so does a worker that drops a task for its age.
# Matters:  after a broker's outage of a second the retry of the caller is refused with AlreadyQueued, or with graceful=True by nothing at all,
#           and the work is not done for an hour. The lock needs its end in the place where the message has its own.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages celery==5.6.2 celery-once==3.0.1 redis==8.1.0 2>pip.log
cat >main.py <<'END'
import sys
import time

from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery_once import AlreadyQueued, QueueOnce

url = f"redis://127.0.0.1:{sys.argv[1]}"


def application(broker):
    app = Celery(broker, broker=broker)
    app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": {"url": url + "/1"}}
    return app


def mail(to):
    ran.append(to)
    if to == "failed":
        raise ValueError


ran = []
app = application(url)
task = app.task(mail, base=QueueOnce, name="mail")
down = application("redis://127.0.0.1:1").task(mail, base=QueueOnce, name="down")


def send(task, to, **options):
    try:
        task.apply_async([to], retry=False, **options)
        return "queued"
    except AlreadyQueued as error:
        return f"AlreadyQueued for {error.countdown / 60:.0f} minutes"
    except Exception as error:
        return type(error).__name__


for case, task, options in ("as it is", task, {}), ("failed", task, {}), ("expired", task, {"expires": 1}), ("broker refuses", down, {}):
    ran.clear()
    first = send(task, case, **options)
    time.sleep(2)
    with start_worker(app, pool="solo", perform_ping_check=False):
        time.sleep(3)
    print(f"{case}: first: {first}, ran: {len(ran)}, again: {send(task, case)}")
    app.control.purge()
END
expect python3 main.py "$port" 2>python.log <<'END'
as it is: first: queued, ran: 1, again: queued
failed: first: queued, ran: 1, again: queued
expired: first: queued, ran: 0, again: AlreadyQueued for 60 minutes
broker refuses: first: OperationalError, ran: 0, again: AlreadyQueued for 60 minutes
END
