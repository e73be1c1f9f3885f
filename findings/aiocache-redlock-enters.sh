#!/usr/bin/env bash
# aiocache: RedLock waits inside one process alone; whoever asks from another one enters at once
#
# Run:      aiocache 0.12.3 with redis-py 5.3.1 (PyPI), Redis 8.2.3: a section under RedLock("report", lease=30) that takes three seconds.
#           Another task of its process, and another process, ask for the lock half a second later.
# Guess:    both wait for the end of the section, or of the lease; the key in Redis tells the other process that the lock is taken.
# Seen:     the task waits. The other process finds the key, has no event of its own process to wait for, and goes on as if the lock had
#           been released meanwhile.
# Matters:  ten processes make the expensive value ten times at once, which is what the lock is there to prevent. Under a test with one
#           process it works. A waiter needs something to wait for in Redis: a message, or to ask again.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages aiocache==0.12.3 redis==5.3.1
cat >main.py <<'END'
import asyncio
import subprocess
import sys

from aiocache import RedisCache
from aiocache.lock import RedLock

cache = RedisCache(endpoint="127.0.0.1", port=int(sys.argv[1]))
over = False


async def ask():
    async with RedLock(cache, "report", lease=30):
        return over


async def main():
    global over
    async with RedLock(cache, "report", lease=30):
        task = asyncio.create_task(ask())
        process = await asyncio.create_subprocess_exec(sys.executable, __file__, sys.argv[1], "asks", stdout=subprocess.PIPE)
        answer = await asyncio.wait_for(process.stdout.readline(), 25)
        print("another process, during the section:", answer.decode().strip())
        await asyncio.sleep(1)
        over = True
    print("another task enters after the section:", await task)
    await process.wait()
    await cache.close()


async def other():
    async with RedLock(cache, "report", lease=30):
        print("enters")
    await cache.close()


asyncio.run(other() if sys.argv[2:] else main())
END
expect python3 main.py "$port" <<'END'
another process, during the section: enters
another task enters after the section: True
END
