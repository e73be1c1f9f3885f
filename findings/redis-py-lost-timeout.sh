#!/usr/bin/env bash
# redis-py: with Python 3.11, asyncio.timeout() around a loop of commands is mostly not noticed, and the loop goes on
#
# Run:      redis.asyncio of redis 8.1.0 with async-timeout 5.0.1 (PyPI), Python 3.11.2 (Debian 12), Redis 8.2.3: a loop of SET NX for a lock
#           that somebody else has, inside asyncio.timeout(0.1), which is given a second; fifty times. The same with socket_timeout=None.
# Guess:    TimeoutError after a tenth of a second, each time: every turn of the loop waits for Redis, and is cancelled there.
# Seen:     most of the loops go on. With a socket timeout, which is the default, a command is written by asyncio.wait_for, which up to
#           Python 3.11 returns what is there and drops the cancellation, if both come at once. A timeout cancels once, and that was it.
#           Without a socket timeout all loops end, as they do with Python 3.12.
# Matters:  "try for at most so long" around SET NX without a pause waits until the lock is free, and Task.cancel() at a shutdown is dropped in
#           the same way. A loop needs a condition of its own, or a sleep, where a cancellation most probably comes.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages redis==8.1.0 async-timeout==5.0.1
debian python3.11-minimal=3.11.2-6+deb12u9 libpython3.11-minimal=3.11.2-6+deb12u9 libpython3.11-stdlib=3.11.2-6+deb12u9
cat >main.py <<'END'
import asyncio
import sys
import time

from redis.asyncio import Redis


async def main(port):
    for name, options in ("as it is", {}), ("socket_timeout=None", {"socket_timeout": None}):
        client = Redis(port=port, **options)
        await client.set("lock", "other")
        ended = 0
        for _ in range(50):
            end = time.monotonic() + 1
            try:
                async with asyncio.timeout(0.1):
                    while time.monotonic() < end and not await client.set("lock", "me", nx=True, px=10_000):
                        pass
            except TimeoutError:
                ended += 1
        print(f"{name}: loops that ended by their timeout:", "all" if ended == 50 else "fewer than half" if ended < 25 else ended)
        await client.aclose()


asyncio.run(main(int(sys.argv[1])))
END
expect debian/usr/bin/python3.11 main.py "$port" <<'END'
as it is: loops that ended by their timeout: fewer than half
socket_timeout=None: loops that ended by their timeout: all
END
