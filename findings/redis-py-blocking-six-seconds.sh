#!/usr/bin/env bash
# redis-py: BLPOP, XREAD and WAIT for six seconds raise TimeoutError after about a minute
#
# Run:      redis 8.1.0 and python-redis-lock 4.0.1 (PyPI), Redis 8.2.3, defaults: BLPOP, XREAD BLOCK and WAIT for 3 s and for 6 s, with
#           nothing to come, and python-redis-lock's acquire(timeout=6) of a lock that is free after 2 s, as its holder's lease ends.
# Guess:    nothing after 3 s and 6 s: a client knows of the commands that block, and waits for as long as they were told to. acquire has
#           the lock, or returns False after 6 s.
# Seen:     the socket's time-out, by now 5 s by default, counts for them as well. At its end the command is taken for lost and sent again,
#           ten times, and then TimeoutError is raised. get_message(timeout=6) is right.
# Matters:  a worker's loop or a wait for a lock that was fine with an older version fails as soon as nothing happens for five seconds, and
#           blames the network. Wait in steps below socket_timeout, or set that to None.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages redis==8.1.0 python-redis-lock==4.0.1
cat >main.py <<'END'
import concurrent.futures
import sys
import time

import redis
import redis_lock


def subscribed():
    pubsub = client.pubsub()
    pubsub.subscribe("channel")
    pubsub.get_message(timeout=1)
    return pubsub


def told(call):
    start = time.monotonic()
    try:
        result = call()
    except redis.TimeoutError:
        result = "TimeoutError"
    return f"{result}, after more than 20 s: {time.monotonic() - start > 20}"


client = redis.Redis(port=int(sys.argv[1]))
client.set("lock:order", "a holder that died", px=2000)
calls = {
    "BLPOP 3": lambda: client.blpop("list", 3),
    "BLPOP 6": lambda: client.blpop("list", 6),
    "XREAD BLOCK 3000": lambda: client.xread({"stream": "$"}, block=3000),
    "XREAD BLOCK 6000": lambda: client.xread({"stream": "$"}, block=6000),
    "WAIT 1 3000": lambda: client.wait(1, 3000),
    "WAIT 1 6000": lambda: client.wait(1, 6000),
    "get_message 6": lambda: subscribed().get_message(timeout=6),
    "acquire 6": lambda: redis_lock.Lock(client, "order", expire=60).acquire(timeout=6),
}
with concurrent.futures.ThreadPoolExecutor(len(calls)) as threads:
    for name, ended in zip(calls, threads.map(told, calls.values())):
        print(f"{name}: {ended}")
END
expect python3 main.py "$port" <<'END'
BLPOP 3: None, after more than 20 s: False
BLPOP 6: TimeoutError, after more than 20 s: True
XREAD BLOCK 3000: [], after more than 20 s: False
XREAD BLOCK 6000: TimeoutError, after more than 20 s: True
WAIT 1 3000: 0, after more than 20 s: False
WAIT 1 6000: TimeoutError, after more than 20 s: True
get_message 6: None, after more than 20 s: False
acquire 6: TimeoutError, after more than 20 s: True
END
