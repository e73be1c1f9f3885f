#!/usr/bin/env bash
# dogpile.cache: who takes longer than lock_timeout to make a value gets an error in its place, though the value is stored
#
# Run:      dogpile.cache 1.5.0 with redis 8.1.0 (PyPI), Redis 8.2.3: a region with distributed_lock and a lock_timeout of one second, and
#           get_or_create with a creator that takes two.
# Guess:    the lock expires, so that others may make the value, too. That is all: the caller gets its value.
# Seen:     the value is in the cache, and get_or_create raises LockNotOwnedError, since its release of the lock fails.
# Matters:  a lock that spares work turns a slow answer into none, just when the creator is slow. A release that fails because the lease
#           is over has to be told apart from a section that failed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages dogpile.cache==1.5.0 redis==8.1.0
cat >main.py <<'END'
import sys
import time

from dogpile.cache import make_region

region = make_region().configure("dogpile.cache.redis", expiration_time=60, arguments={
    "port": int(sys.argv[1]), "distributed_lock": True, "thread_local_lock": False, "lock_timeout": 1})


def make(value, seconds):
    time.sleep(seconds)
    return value


for key, seconds in ("quick", 0), ("slow", 2):
    try:
        print(f"{key}: returned", region.get_or_create(key, lambda: make("value", seconds)))
    except Exception as e:
        print(f"{key}: raised", type(e).__name__)
    print(f"{key}: stored", region.get(key))
END
expect python3 main.py "$port" <<'END'
quick: returned value
quick: stored value
slow: raised LockNotOwnedError
slow: stored value
END
