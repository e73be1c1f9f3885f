#!/usr/bin/env bash
# redis-py: with asyncio, a task whose lease has ended releases the lock that another task has got since
#
# Run:      redis 8.1.0 (PyPI), Redis 8.2.3: two workers share one Lock object with a lease of half a second. The first overruns it, the
#           second gets the lock, and then the first releases. Once with threads, once with asyncio's tasks.
# Guess:    the same in both: the first one's release fails with LockNotOwnedError, and the second's lock stays. Lock has a token for each
#           worker for just that, unless one says thread_local=False.
# Seen:     with threads it is so. The Lock of redis.asyncio has a token for each thread, too, and all tasks run in one: the second
#           task's token replaces the first's, whose release succeeds and frees the second's lock in mid-section.
# Matters:  who owns a lock has to be known by what runs the section. Ported to asyncio, code keeps its types and loses its owners; a
#           Lock object for each section helps.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages redis==8.1.0
cat >main.py <<'END'
import asyncio
import sys
import threading

import redis
import redis.asyncio

port = int(sys.argv[1])


def with_threads():
    client = redis.Redis(port=port)
    lock = client.lock("threads", timeout=0.5)
    lock.acquire()
    acquired, late = threading.Event(), threading.Event()

    def second():
        lock.acquire()
        acquired.set()
        late.wait()

    thread = threading.Thread(target=second)
    thread.start()
    acquired.wait()
    client.pexpire("threads", 60_000)
    try:
        lock.release()
        print("threads: released")
    except redis.exceptions.LockNotOwnedError:
        print("threads: not owned")
    print("threads: the second's lock is there:", bool(client.exists("threads")))
    late.set()
    thread.join()


async def with_tasks():
    client = redis.asyncio.Redis(port=port)
    lock = client.lock("tasks", timeout=0.5)
    await lock.acquire()
    await asyncio.create_task(lock.acquire())
    await client.pexpire("tasks", 60_000)
    try:
        await lock.release()
        print("tasks: released")
    except redis.exceptions.LockNotOwnedError:
        print("tasks: not owned")
    print("tasks: the second's lock is there:", bool(await client.exists("tasks")))
    await client.aclose()


with_threads()
asyncio.run(with_tasks())
END
expect python3 main.py "$port" <<'END'
threads: not owned
threads: the second's lock is there: True
tasks: released
tasks: the second's lock is there: False
END
