#!/usr/bin/env bash
# filelock: a FileLock that threads share excludes them, and an AsyncFileLock that tasks share lets all of them in
#
# Run:      filelock 4.3.1 (PyPI): five threads or tasks enter one lock at once, each for a second: FileLock, AsyncFileLock,
#           AsyncSoftFileLock, AsyncReadWriteLock, and AsyncFileLock with an object for each task, once more with is_singleton=True.
# Guess:    one at a time. FileLock is reentrant for the thread that has it, so AsyncFileLock is for the task that has it.
# Seen:     AsyncFileLock is reentrant for the object: all five have it. Objects of their own exclude each other, unless is_singleton makes
#           them one. In the same package, AsyncReadWriteLock belongs to a task.
# Matters:  "with lock" in threads, rewritten as "async with lock", is right between processes and no lock within one. Who may enter again
#           is a part of a lock's meaning, and has to stay when threads become tasks.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

python_packages filelock==4.3.1
cat >main.py <<'END'
import asyncio
import threading
import time

import filelock


class Inside:
    def __init__(self):
        self.now = self.most = 0

    def enter(self):
        self.now += 1
        self.most = max(self.most, self.now)

    def leave(self):
        self.now -= 1


def threads(lock):
    inside = Inside()

    def work():
        with lock:
            inside.enter()
            time.sleep(1)
            inside.leave()

    started = [threading.Thread(target=work) for _ in range(5)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return inside.most


async def tasks(lock):
    inside = Inside()

    async def work():
        async with lock():
            inside.enter()
            await asyncio.sleep(1)
            inside.leave()

    await asyncio.gather(*(work() for _ in range(5)))
    return inside.most


async def main():
    shared, soft = filelock.AsyncFileLock("shared"), filelock.AsyncSoftFileLock("soft")
    print("AsyncFileLock:", await tasks(lambda: shared))
    print("AsyncSoftFileLock:", await tasks(lambda: soft))
    print("AsyncFileLock for each task:", await tasks(lambda: filelock.AsyncFileLock("each")))
    print("AsyncFileLock for each task, is_singleton=True:", await tasks(lambda: filelock.AsyncFileLock("single", is_singleton=True)))
    read_write = filelock.AsyncReadWriteLock("read-write")
    print("AsyncReadWriteLock:", await tasks(read_write.write_lock))
    await read_write.close()


print("FileLock, threads:", threads(filelock.FileLock("threads")))
asyncio.run(main())
END
expect python3 main.py <<'END'
FileLock, threads: 1
AsyncFileLock: 5
AsyncSoftFileLock: 5
AsyncFileLock for each task: 1
AsyncFileLock for each task, is_singleton=True: 5
AsyncReadWriteLock: 1
END
