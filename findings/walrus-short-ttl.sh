#!/usr/bin/env bash
# walrus: a lock with a ttl below a second is not taken by those who wait when its holder has died
#
# Run:      walrus 0.9.8 with redis-py 8.1.0 (PyPI), Redis 8.2.3: a lock with a ttl of 1900 ms, and one of 900 ms, are acquired and left, as
#           by a process that ends. Another object waits for each, and is looked at after six seconds. Then a third asks without waiting.
# Guess:    it has the lock after the ttl: "threads that are blocked waiting for the lock could potentially re-acquire it".
# Seen:     it waits in BLPOP for the ttl, in whole seconds: 1 for 1900 ms, and 0 for 900. For BLPOP, 0 is without an end. The lock is free,
#           the third gets it at once, and the waiter sleeps until somebody who has it releases it.
# Matters:  the shorter lease, for a faster recovery, is the one without any. A duration that is cut to a coarser unit can become the value
#           that means "for ever".
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages walrus==0.9.8 redis==8.1.0
cat >main.py <<'END'
import sys
import threading

from walrus import Database

for ttl in 1900, 900:
    locks = [Database(port=int(sys.argv[1])).lock(f"report-{ttl}", ttl=ttl) for _ in range(3)]
    locks[0].acquire()
    waiter = threading.Thread(target=locks[1].acquire, daemon=True)
    waiter.start()
    waiter.join(6)
    print(f"ttl={ttl}: the waiter has it after 6 s: {not waiter.is_alive()}")
    if waiter.is_alive():
        print("  another one, without waiting:", locks[2].acquire(block=False))
        print("  released:", locks[2].release())
        waiter.join(6)
        print("  the waiter has it:", not waiter.is_alive())
END
expect python3 main.py "$port" <<'END'
ttl=1900: the waiter has it after 6 s: True
ttl=900: the waiter has it after 6 s: False
  another one, without waiting: True
  released: True
  the waiter has it: True
END
