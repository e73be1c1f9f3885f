#!/usr/bin/env bash
# Redis and Valkey: EXEC succeeds after a field of the watched hash has expired; after an expired key it does not
#
# Run:      Redis 8.2.3, Valkey 9.1.2: WATCH of "lock", a look that says "me", sixty milliseconds in which the lease of forty ends, then
#           MULTI, SET and EXEC. The lock is a key with PX, a hash whose only field has HPEXPIRE, or a hash with such a field and another
#           one. Forty times each.
# Guess:    EXEC is aborted each time: WATCH is for "nothing has changed since I looked", and since Redis 6.2 the end of a key's time counts.
# Seen:     for a key it is. For a field the answer depends on whether the server has already removed it, which it does about ten times
#           a second, and nothing at EXEC looks at the time: most transactions are carried out, though HGET would say nil by then.
# Matters:  "WATCH, see that I hold it, write" is a usual guard, and moving a holder from a key into a field of a hash removes it without an
#           error. Whether the lease is over has to be asked in the transaction itself, by a script.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

python_packages redis==8.1.0
start_server redis-8.2
redis=$port
start_server valkey-9.1
cat >main.py <<'END'
import sys
import time

from redis import Redis, WatchError

FIELD = ("HSET", "lock", "holder", "me"), ("HPEXPIRE", "lock", 40, "FIELDS", 1, "holder")
LOOK = ("HGET", "lock", "holder")
locks = [
    ("a key", [("SET", "lock", "me", "PX", 40)], ("GET", "lock")),
    ("the only field", FIELD, LOOK),
    ("one of two fields", [("HSET", "lock", "since", "now"), *FIELD], LOOK),
]


def aborted(client, commands, look):
    client.flushall()
    with client.pipeline() as pipe:
        for command in commands:
            client.execute_command(*command)
        pipe.watch("lock")
        assert pipe.immediate_execute_command(*look) == b"me"
        time.sleep(0.06)
        pipe.multi()
        pipe.set("written", "by the holder")
        try:
            pipe.execute()
        except WatchError:
            return True
    return False


for name, port in zip(("Redis", "Valkey"), sys.argv[1:]):
    client = Redis(port=int(port), protocol=2)
    for lock, commands, look in locks:
        count = sum(aborted(client, commands, look) for _ in range(40))
        print(f"{name}, {lock}: {'all' if count == 40 else 'less than half' if count < 20 else count} aborted")
END
expect python3 main.py "$redis" "$port" <<'END'
Redis, a key: all aborted
Redis, the only field: less than half aborted
Redis, one of two fields: less than half aborted
Valkey, a key: all aborted
Valkey, the only field: less than half aborted
Valkey, one of two fields: less than half aborted
END
