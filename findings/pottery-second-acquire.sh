#!/usr/bin/env bash
# pottery: after acquire(blocking=False) of a lock that one has, nobody can release it
#
# Run:      pottery 3.0.1 with redis 8.1.0 (PyPI), Redis 8.2.3: a Redlock is acquired, acquired again, and released; another one of that
#           name is acquired. The same with a Lock of redis-py.
# Guess:    the second acquire says False and changes nothing, as with threading.Lock, whose interface it offers.
# Seen:     each acquire gives the object a new value before it asks Redis, and the value is what it knows its lock by. After the refused
#           one it has no lock for itself: locked() is 0, release() raises, and the key stays until its lease ends.
# Matters:  "can I get it?" asked of a shared object, as by a second thread, takes the lock from the section that runs, and blocks all
#           others for the rest of the lease. The value may only be noted when the lock is had.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages pottery==3.0.1 redis==8.1.0
cat >main.py <<'END'
import sys

import pottery
import redis

client = redis.Redis(port=int(sys.argv[1]))


def released(lock):
    try:
        lock.release()
    except pottery.ReleaseUnlockedLock:
        return "ReleaseUnlockedLock"
    return "released"


for name, lock in (
    ("pottery", lambda: pottery.Redlock(key="order", masters={client}, auto_release_time=60)),
    ("redis-py", lambda: client.lock("order", timeout=60)),
):
    first = lock()
    print(f"{name}: {first.acquire()}, locked: {first.locked() > 0}")
    print(f"  again: {first.acquire(blocking=False)}, locked: {first.locked() > 0}")
    print(f"  release: {released(first)}, another: {lock().acquire(blocking=False)}")
END
expect python3 main.py "$port" <<'END'
pottery: True, locked: True
  again: False, locked: False
  release: ReleaseUnlockedLock, another: False
redis-py: True, locked: True
  again: False, locked: True
  release: released, another: True
END
