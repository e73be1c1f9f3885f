#!/usr/bin/env bash
# dramatiq: a worker that was killed inside a ConcurrentRateLimiter keeps its place for as long as others work
#
# Run:      dramatiq 2.2.1 (PyPI), Redis 8.2.3: a limiter for two, whose ttl is a second. One process takes a place and is gone. Another one
#           works on, a fifth of a second at a time. After four seconds, and again after a pause, it asks for two places.
# Guess:    ttl is how long a place lasts: one second after the crash both are free.
# Seen:     places are one number under one key, and each acquire and release gives the key its whole ttl again. While somebody works,
#           the place stays lost. It comes back only if nobody asks for as long as ttl, 15 minutes unless set.
# Matters:  what a dead holder had has to have a time of its own. A count with one expiry loses places until all work stands still, and the
#           busiest limit is the last to recover.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages dramatiq==2.2.1 redis==8.1.0
cat >main.py <<'END'
import os
import sys
import time

import redis
from dramatiq.rate_limits import ConcurrentRateLimiter
from dramatiq.rate_limits.backends import RedisBackend

limiter = ConcurrentRateLimiter(RedisBackend(client=redis.Redis(port=int(sys.argv[1]))), "report", limit=2, ttl=1000)
if sys.argv[2] == "dies":
    with limiter.acquire():
        os._exit(0)


def places():
    with limiter.acquire(raise_on_failure=False) as one, limiter.acquire(raise_on_failure=False) as two:
        return one + two


end = time.monotonic() + 4
while time.monotonic() < end:
    with limiter.acquire():
        time.sleep(0.2)
print("after 4 s of work:", places())
time.sleep(1.5)
print("after a pause:", places())
END
python3 main.py "$port" dies
expect python3 main.py "$port" works <<'END'
after 4 s of work: 1
after a pause: 2
END
