#!/usr/bin/env bash
# RQ: of two jobs with one id, the second runs twice, and the first never
#
# Run:      RQ 3.0.0 with redis-py 8.1.0 (PyPI), Redis 8.2.3: two calls with different arguments are enqueued under one job_id before a worker
#           takes any: in one queue, in two queues, and in one with unique=True.
# Guess:    one job. The first stays and the second is refused, because its id is there; or the second takes the place of the first.
# Seen:     the second overwrites what is stored under the id, and the id is put into a list once more. The worker reads the second call both
#           times, also from two queues. unique=True, which is not the default, refuses the second with an error.
# Matters:  "job_id as idempotency key" sends an email twice, and if the arguments differ, the first one is lost without a word. An id alone
#           is a name, not a promise that there is one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages rq==3.0.0 redis==8.1.0
cat >tasks.py <<'END'
ran = []


def mail(to):
    ran.append(to)
END
cat >main.py <<'END'
import sys

from redis import Redis
from rq import Queue, SimpleWorker

import tasks

client = Redis(port=int(sys.argv[1]))
one, two = Queue("one", connection=client), Queue("two", connection=client)
for name, second, options in ("job_id", one, {}), ("job_id, another queue", two, {}), ("unique=True", one, {"unique": True}):
    tasks.ran.clear()
    print(f"{name}:", end=" ")
    for queue, to in (one, "anna"), (second, "ben"):
        try:
            queue.enqueue(tasks.mail, to, job_id="welcome", **options)
        except Exception as error:
            print(f"{to}: {type(error).__name__},", end=" ")
    SimpleWorker([one, two], connection=client).work(burst=True, logging_level="ERROR")
    print("ran:", *tasks.ran)
    client.flushdb()
END
PYTHONPATH=$PYTHONPATH:. expect python3 main.py "$port" <<'END'
job_id: ran: ben ben
job_id, another queue: ran: ben ben
unique=True: ben: DuplicateJobError, ran: anna
END
