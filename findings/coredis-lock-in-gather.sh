#!/usr/bin/env bash
# coredis: a lock that is acquired in a task of its own, as by asyncio.gather, cannot be released by anybody, and stays
#
# Run:      coredis 6.9.0 and redis 8.1.0 (PyPI), Redis 8.2.3: two locks without a timeout are acquired one after the other, together by
#           asyncio.gather, and each by a task that is awaited. Then they are released, and the keys are counted. The same with redis-py's
#           locks for asyncio.
# Guess:    released, each time. acquire() said True, the objects are at hand, and awaiting a call in a task is awaiting the call.
# Seen:     the token is in a ContextVar, and a task has a copy of its maker's context: what acquire() sets there ends with the task.
#           release() says "Cannot release an unlocked lock", and the key, without an expiry unless one was asked for, is there for good.
# Matters:  two locks are taken together in just that way, and the first such section is the last. Whether a call runs in a task is the
#           caller's affair, and often not his either: before Python 3.12, asyncio.wait_for makes one. The proof of a hold belongs to the
#           object, or has to be returned.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages coredis==6.9.0 redis==8.1.0
cat >main.py <<'END'
import asyncio
import sys

import coredis
import redis.asyncio
from coredis.patterns.lock import Lock

port = int(sys.argv[1])


async def one_after_the_other(locks):
    return [await lock.acquire() for lock in locks]


async def gather(locks):
    return await asyncio.gather(*(lock.acquire() for lock in locks))


async def tasks(locks):
    return [await asyncio.create_task(lock.acquire()) for lock in locks]


async def release(lock):
    try:
        await lock.release()
        return "released"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


async def report(name, take, locks):
    acquired = await take(locks)
    released = [await release(lock) for lock in locks]
    async with redis.asyncio.Redis(port=port) as client:
        left = await client.dbsize()
        await client.flushall()
    print(f"{name}, {take.__name__}: acquired: {acquired}, {', '.join(sorted(set(released)))}, keys left: {left}")


async def main():
    for take in one_after_the_other, gather, tasks:
        async with redis.asyncio.Redis(port=port) as client:
            await report("redis-py", take, [client.lock(name) for name in ("from", "to")])
        async with coredis.Redis(port=port) as client:
            await report("coredis", take, [Lock(client, name) for name in ("from", "to")])


asyncio.run(main())
END
expect python3 main.py "$port" <<'END'
redis-py, one_after_the_other: acquired: [True, True], released, keys left: 0
coredis, one_after_the_other: acquired: [True, True], released, keys left: 0
redis-py, gather: acquired: [True, True], released, keys left: 0
coredis, gather: acquired: [True, True], LockReleaseError: Cannot release an unlocked lock, keys left: 2
redis-py, tasks: acquired: [True, True], released, keys left: 0
coredis, tasks: acquired: [True, True], LockReleaseError: Cannot release an unlocked lock, keys left: 2
END
