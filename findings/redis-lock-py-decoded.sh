#!/usr/bin/env bash
# redis-lock-py: with decode_responses=True nobody who waits hears of a release, and is told no by a lock that has been free for seconds
#
# Run:      redis-lock-py 1.3.0 with redis-py 8.1.0 (PyPI), Redis 8.2.3: somebody waits for a RedisLock with a blocking_timeout of ten
#           seconds and a pubsub_timeout of ten, which leaves the waking to the message. Its holder releases the lock after two seconds.
#           With a client without options, and with one that has decode_responses=True.
# Guess:    acquire() returns True after two seconds: a release publishes a message, for which the waiter has subscribed. How a client gives
#           replies to its user does not matter for what two locks say to each other.
# Seen:     the waiter compares the message with b"ok"; a client that decodes has "ok", so no message is ever the one. And at the end of its
#           patience it does not look again: False, after eight seconds in which nobody had the lock. With the default pubsub_timeout, it
#           looks in between, after pauses that double.
# Matters:  acquire and release work with both, so one sees it only where two compete, and then mostly as slowness. A wake-up needs a test
#           in which nothing else can let the waiter in, and the last thing to do before giving up is to look once more.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages redis-lock-py==1.3.0 redis==8.1.0
cat >main.py <<'END'
import sys
import threading
import time

import redis
from redis_lock import RedisLock

for options in {}, {"decode_responses": True}:
    client = redis.Redis(port=int(sys.argv[1]), **options)
    holder = RedisLock(client, f"lock {options}")
    holder.acquire()
    answers = []
    waiter = RedisLock(client, f"lock {options}", blocking_timeout=10)
    thread = threading.Thread(target=lambda: answers.append(waiter.acquire(pubsub_timeout=10)))
    thread.start()
    time.sleep(2)
    holder.release()
    thread.join()
    print(f"{options}: acquire() is {answers[0]}")
END
expect python3 main.py "$port" <<'END'
{}: acquire() is True
{'decode_responses': True}: acquire() is False
END
