#!/usr/bin/env bash
# RedBeat: a second beat looks at a released lock once in max_interval, which is five minutes unless set
#
# Run:      celery-redbeat 2.4.2 with Celery 5.7.0 and redis 8.1.0 (PyPI), Redis 8.2.3: two "celery beat", one of which has the lock. Five
#           seconds after the second one began to wait for it the first is asked to stop, and releases it. With a --max-interval of one second,
#           and of thirty.
# Guess:    the second one takes over within a second or two. max_interval says how often a beat looks for changes of the schedule at most,
#           and the lock is redis-py's, which looks ten times a second.
# Seen:     with thirty seconds of max_interval nobody is the beat for the rest of those. RedBeat passes max_interval on as the lock's sleep.
# Matters:  each deployment pauses all schedules for up to five minutes, though the lock is free and somebody waits for it. A second one is
#           there so that this does not happen. How long to sleep between two tries belongs to the lock.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages celery-redbeat==2.4.2 celery==5.7.0 redis==8.1.0
cat >tasks.py <<'END'
import os

from celery import Celery

app = Celery("finding", broker="memory://")
app.conf.redbeat_redis_url = f"redis://127.0.0.1:{os.environ['PORT']}/0"
END
cat >main.py <<'END'
import os
import subprocess
import sys
import time

import redis

os.environ["PORT"] = sys.argv[1]
server = redis.Redis(port=int(sys.argv[1]))


def wait(condition):
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > 60:
            raise SystemExit("nothing happens")
        time.sleep(0.05)
    return time.monotonic() - start


def beats(interval):
    return subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "tasks", "beat", "-S", "redbeat.RedBeatScheduler",
         "--max-interval", str(interval), "--pidfile="],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


for interval in (1, 30):
    first = beats(interval)
    wait(lambda: server.exists("redbeat::lock"))
    server.config_resetstat()
    second = beats(interval)
    wait(lambda: "cmdstat_set" in server.info("commandstats"))
    time.sleep(5)
    first.terminate()
    first.wait()
    idle = wait(lambda: server.exists("redbeat::lock"))
    print(f"max_interval {interval}: nobody has the lock for more than five seconds: {idle > 5}")
    second.terminate()
    second.wait()
END
expect python3 main.py "$port" <<'END'
max_interval 1: nobody has the lock for more than five seconds: False
max_interval 30: nobody has the lock for more than five seconds: True
END
