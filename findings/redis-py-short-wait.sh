#!/usr/bin/env bash
# redis-py: a Lock whose blocking_timeout is shorter than its sleep does not wait at all
#
# Run:      redis 8.1.0 (PyPI), Redis 8.2.3: a lock with 300 ms of its lease left, acquire(blocking_timeout=5) with sleep=1 and with
#           sleep=6.
# Guess:    sleep is how often it looks. With 5 s to wait it looks a last time at their end, when the lock has long been free.
# Seen:     if the next look would come after the end it gives up now, without using what is left of its time: with sleep=6 after one
#           look.
# Matters:  a long sleep, chosen to spare Redis, turns a wait into a try, and "not acquired" says nothing about the seconds that were
#           asked for.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages redis==8.1.0
cat >main.py <<'END'
import sys
import time

import redis

client = redis.Redis(port=int(sys.argv[1]))
for sleep in 1, 6:
    client.set("lock", "somebody", px=300)
    start = time.monotonic()
    got = client.lock("lock", timeout=60, sleep=sleep).acquire(blocking_timeout=5)
    print(f"sleep={sleep}: acquired: {got}, waited for more than 250 ms: {time.monotonic() - start > 0.25}")
END
expect python3 main.py "$port" <<'END'
sleep=1: acquired: True, waited for more than 250 ms: True
sleep=6: acquired: False, waited for more than 250 ms: False
END
