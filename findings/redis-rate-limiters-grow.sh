#!/usr/bin/env bash
# redis-rate-limiters: whenever all places are taken for longer than expiry, a semaphore gets more of them, and keeps them
#
# Run:      redis-rate-limiters 0.5.0 with redis-py 8.1.0 (PyPI), Redis 8.2.3: SyncSemaphore with capacity=1 and expiry=2. A task has it for
#           seven seconds, and another one comes after five. Then two tasks have it for seven seconds, then three. The places in Redis are
#           counted after each turn, and again after three seconds without any use.
# Guess:    "set expiry on the semaphore keys in Redis to prevent deadlocks" is about those that died: at worst the other one gets in when
#           the time of a slow one's place is over, and the semaphore is one of one.
# Seen:     the other one gets in, since the keys are gone, and makes the semaphore anew with all its places. Then each gives back the place
#           that it took, into the new one, which has two, then three, then four. Only a pause without any use ends that.
# Matters:  expiry is 30 s as it is. One slow minute of whatever is behind it, and the limit that should protect it is higher from then on,
#           for as long as there is work. A place needs a holder with a time of its own; a list of tokens cannot tell whose it gets back.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages redis-rate-limiters==0.5.0 redis==8.1.0
cat >main.py <<'END'
import sys
import threading
import time

import redis
from limiters import SyncSemaphore

client = redis.Redis(port=int(sys.argv[1]))
inside = most = 0
count = threading.Lock()


def task(seconds):
    global inside, most
    with SyncSemaphore(connection=client, name="report", capacity=1, max_sleep=20, expiry=2):
        with count:
            inside += 1
            most = max(most, inside)
        time.sleep(seconds)
        with count:
            inside -= 1


for turn in range(3):
    slow = [threading.Thread(target=task, args=(7,)) for _ in range(turn + 1)]
    for thread in slow:
        thread.start()
    time.sleep(5)
    quick = threading.Thread(target=task, args=(0.1,))
    quick.start()
    for thread in [*slow, quick]:
        thread.join()
    print("most inside:", most, "places:", client.llen("{limiter}:semaphore:report"))
time.sleep(3)
print("after a pause, places:", client.llen("{limiter}:semaphore:report"))
END
expect python3 main.py "$port" <<'END'
most inside: 2 places: 2
most inside: 3 places: 3
most inside: 4 places: 4
after a pause, places: 0
END
