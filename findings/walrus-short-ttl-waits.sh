#!/usr/bin/env bash
# walrus: whoever waits for a lock with a ttl below a second is not let in when its holder has died, and waits for ever
#
# Run:      walrus 0.9.8 with redis-py 6.4.0 (PyPI), Redis 8.2.3: somebody takes a lock with a ttl of 900 ms and is never heard of again.
#           Another one acquires it with that ttl. Then both with a ttl of 1,900 ms, and then with 900 ms and a holder that releases.
# Guess:    the waiter has it after about a second in each case: "block until the lock becomes free (either by being released or expiring)".
# Seen:     it waits on a list that a release pushes to, for ttl // 1000 seconds. That is 0, which for BLPOP means no end. After ten seconds
#           the lock has been free for nine, no key is there, and the waiter sleeps on, until somebody else comes by and releases. With
#           redis-py 8, whose connections have a timeout, it gets a TimeoutError after a minute, and no lock either.
# Matters:  the short lease is what one takes to be let in soon after a crash. A length of time that is cut to whole seconds has to be
#           rounded up, most of all where zero means "for ever".
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages walrus==0.9.8 redis==6.4.0
cat >main.py <<'END'
import os
import sys
import threading
import time

from walrus import Database

database = Database(port=int(sys.argv[1]))


def case(name, ttl, releases):
    holder = database.lock(name, ttl)
    holder.acquire()
    waiter = threading.Thread(target=database.lock(name, ttl).acquire, daemon=True)
    waiter.start()
    time.sleep(0.3)
    if releases:
        holder.release()
    waiter.join(10)
    print(f"{name}: the waiter sleeps after ten seconds: {waiter.is_alive()}")
    if waiter.is_alive():
        print(f"{name}: somebody has the lock: {database.exists('lock:' + name) == 1}")


case("900 ms, holder dies", 900, False)
case("1900 ms, holder dies", 1900, False)
case("900 ms, holder releases", 900, True)
sys.stdout.flush()
os._exit(0)  # a thread still waits
END
expect python3 main.py "$port" <<'END'
900 ms, holder dies: the waiter sleeps after ten seconds: True
900 ms, holder dies: somebody has the lock: False
1900 ms, holder dies: the waiter sleeps after ten seconds: False
900 ms, holder releases: the waiter sleeps after ten seconds: False
END
