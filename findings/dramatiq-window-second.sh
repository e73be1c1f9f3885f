#!/usr/bin/env bash
# dramatiq: WindowRateLimiter(limit=10, window=1) lets twenty through in half a second
#
# Run:      dramatiq 2.2.1 (PyPI), Redis 8.2.3: a BucketRateLimiter for ten a second is asked for more than that shortly before a second of the
#           clock ends, and again shortly after, half a second in all. The same with a WindowRateLimiter of one second, and of two.
# Guess:    the bucket lets twenty through, as its documentation warns, and the windows ten: they slide, and are what it names instead.
# Seen:     the window of one second lets twenty through, too. A window is made of the clock's whole seconds, the current one among them: one
#           of a second is a bucket, and one of N seconds looks back over as little as N-1.
# Matters:  the shortest window, where a burst matters most, is the one that does not slide at all. A window of slots has to keep one slot
#           more than it is long.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages dramatiq==2.2.1 redis==8.1.0
cat >main.py <<'END'
import sys
import time

import redis
from dramatiq.rate_limits import BucketRateLimiter, WindowRateLimiter
from dramatiq.rate_limits.backends import RedisBackend

backend = RedisBackend(client=redis.Redis(port=int(sys.argv[1])))


def allowed(limiter):
    count = 0
    for _ in range(15):
        with limiter.acquire(raise_on_failure=False) as got:
            count += got
    return count


def around_a_second(name, make):
    """What the limiter allows before and after the clock's next second, in half a second together."""
    for attempt in range(100):
        limiter = make(f"{name}-{attempt}")
        time.sleep(1.8 - time.time() % 1)
        start = time.time()
        before = allowed(limiter)
        if int(time.time()) > int(start):
            continue
        time.sleep(1.001 - time.time() % 1)
        after = allowed(limiter)
        if time.time() - start < 0.5:
            return before, after
    raise SystemExit("too slow")


limiters = {
    "bucket of one second": lambda key: BucketRateLimiter(backend, key, limit=10, bucket=1000),
    "window of one second": lambda key: WindowRateLimiter(backend, key, limit=10, window=1),
    "window of two seconds": lambda key: WindowRateLimiter(backend, key, limit=10, window=2),
}
for name, make in limiters.items():
    print(f"{name}:", *around_a_second(name, make))
END
expect python3 main.py "$port" <<'END'
bucket of one second: 10 10
window of one second: 10 10
window of two seconds: 10 0
END
