#!/usr/bin/env bash
# redis-py: an acquire() that was cancelled has the lock, for ever, and nobody can release it
#
# Run:      redis.asyncio of redis 8.1.0 (PyPI), Redis 8.2.3 that is stopped (SIGSTOP) for a moment: asyncio.wait_for(lock.acquire(), 0.5).
# Guess:    wait_for raises TimeoutError, so the lock is not had. Or acquire tidies up when it is cancelled, as asyncio.Lock's does.
# Seen:     Redis runs the SET when it goes on. The token of a lock is noted only after the reply, so this Lock cannot release it either,
#           and a Lock without timeout, the default, has no lease.
# Matters:  in a slow moment, the deadline around a lock turns it into one that stays. Cancelling needs a shield and a release, and each
#           Lock a timeout.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages redis==8.1.0
cat >main.py <<'END'
import asyncio
import os
import signal
import sys

import redis.asyncio
from redis.exceptions import LockError


async def main(port, pid):
    client = redis.asyncio.Redis(port=port)
    await client.ping()
    lock = client.lock("order")
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.wait_for(lock.acquire(), 0.5)
    except TimeoutError:
        print("acquire: TimeoutError")
    os.kill(pid, signal.SIGCONT)
    await asyncio.sleep(0.5)
    print("locked:", await lock.locked(), "owned:", await lock.owned(), "TTL:", await client.ttl("order"))
    try:
        await lock.release()
    except LockError as error:
        print("release:", error)
    print("acquire of another:", await client.lock("order").acquire(blocking_timeout=2))
    await client.aclose()


asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
END
expect python3 main.py "$port" "${pids[-1]}" <<'END'
acquire: TimeoutError
locked: True owned: False TTL: -1
release: Cannot release a lock that's not owned or is already unlocked.
acquire of another: False
END
