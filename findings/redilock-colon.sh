#!/usr/bin/env bash
# redilock: a lock whose name has a colon in it is never released
#
# Run:      python-redilock 0.6.0 with redis-py 8.1.0 (PyPI), Redis 8.2.3: "order-17" and "order:17" are locked for ten minutes in a with
#           statement, and locked and unlocked by calls.
# Guess:    both are free after each.
# Seen:     a token is "_LOCK:", the name, ":" and a random part, and unlock() gets the name by splitting it at colons. More than three
#           parts are not a token: unlock() returns False, which the with statement does not look at, and the key stays for its ttl.
# Matters:  colons are how names in Redis are usually made. The first section works, the next one waits for the whole ttl. A format that is
#           read back needs a separator that cannot be in its parts, or has to be split from the end.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages python-redilock==0.6.0 redis==8.1.0
cat >main.py <<'END'
import sys

import redis
from redilock.sync_redilock import DistributedLock

keys = redis.Redis(port=int(sys.argv[1]))
locks = DistributedLock(redis_host="127.0.0.1", redis_port=int(sys.argv[1]), ttl=600)
for name in "order-17", "order:17":
    with locks(name):
        pass
    print(f"{name}: after with, taken:", keys.exists(name) == 1)
    keys.delete(name)
    print("  unlock():", locks.unlock(locks.lock(name)), "taken:", keys.exists(name) == 1)
END
expect python3 main.py "$port" <<'END'
order-17: after with, taken: False
  unlock(): True taken: False
order:17: after with, taken: True
  unlock(): False taken: True
END
