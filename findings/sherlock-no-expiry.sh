#!/usr/bin/env bash
# sherlock: a RedisLock without an expiry is gone at once, and everybody gets it
#
# Run:      sherlock 0.4.1 with redis-py 8.1.0 (PyPI), Redis 8.2.3: two objects acquire one lock, with expire=60 and with expire=None, which
#           its documentation has as "lock will not expire". The first one releases it.
# Guess:    the second is refused both times; with None the key has no TTL.
# Seen:     None is -1 for the script, which leaves EXPIRE out if ARGV[2] is the number -1. Arguments of a script are strings, and in Lua
#           "-1" is not -1: the key is made to expire a second ago, which deletes it. Both have the lock, and neither can release it.
# Matters:  the setting for "keep it until I release it" is the one without exclusion, and acquire() says True. A number from ARGV needs
#           tonumber before it is compared; before arithmetic Lua converts by itself, so that this looks right.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages sherlock==0.4.1 redis==8.1.0
cat >main.py <<'END'
import sys

import redis
import sherlock

client = redis.Redis(port=int(sys.argv[1]))
for expire in 60, None:
    one, other = (sherlock.RedisLock(f"report-{expire}", client=client, expire=expire) for _ in range(2))
    print(f"expire={expire}:", one.acquire(), other.acquire(blocking=False))
    print("  keys:", client.exists(f"report-{expire}"))
    try:
        one.release()
        print("  released")
    except sherlock.LockException as error:
        print("  release:", type(error).__name__)
END
expect python3 main.py "$port" <<'END'
expire=60: True False
  keys: 1
  released
expire=None: True True
  keys: 0
  release: LockException
END
