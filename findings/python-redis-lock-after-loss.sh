#!/usr/bin/env bash
# python-redis-lock: after a lock with auto_renewal was lost once, every acquire() of that object fails, and takes the lock
#
# Run:      python-redis-lock 4.0.1 with redis 8.1.0 (PyPI), Redis 8.2.3: a Lock with expire=3, with and without auto_renewal, is acquired;
#           an operator resets it. With auto_renewal its renewals end with an error. It is released, acquired again, and another one tries.
# Guess:    release() says that the lock was lost, and then the object is as good as new.
# Seen:     without auto_renewal it is. With it, release() leaves the thread that ended in the object, and acquire() looks for one only
#           when it has set the key: AlreadyStarted is raised, by somebody who has the lock. Nobody renews or releases it.
# Matters:  a worker that keeps its Lock, and survives one loss, from then on never gets in, and with each try keeps all others out for a
#           lease. What was taken has to be given back by the call that fails.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages python-redis-lock==4.0.1 redis==8.1.0
cat >main.py <<'END'
import sys
import threading

import redis
import redis_lock

client = redis.Redis(port=int(sys.argv[1]))
threading.excepthook = lambda args: print("  renewals end:", args.exc_type.__name__)


def report(name, call):
    try:
        print(f"  {name}: {call()}")
    except Exception as error:
        print(f"  {name}: {type(error).__name__}")


for name, renewed in (("plain", False), ("auto_renewal", True)):
    print(f"{name}:")
    lock = redis_lock.Lock(client, name, expire=3, auto_renewal=renewed)
    report("acquire", lock.acquire)
    redis_lock.Lock(client, name).reset()
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join()
    report("release", lock.release)
    report("acquire again", lock.acquire)
    print(f"  it is the owner: {lock.get_owner_id() == lock.id}")
    report("another one", lambda: redis_lock.Lock(client, name).acquire(blocking=False))
END
expect python3 main.py "$port" <<'END'
plain:
  acquire: True
  release: NotAcquired
  acquire again: True
  it is the owner: True
  another one: False
auto_renewal:
  acquire: True
  renewals end: NotAcquired
  release: NotAcquired
  acquire again: AlreadyStarted
  it is the owner: True
  another one: False
END
