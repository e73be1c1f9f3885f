#!/usr/bin/env bash
# Redis: HPEXPIRE brings a field back whose time is over; PEXPIRE of a key does not, nor does HPERSIST, nor Valkey's HPEXPIRE
#
# Run:      Redis 8.2.3, Valkey 9.1.2: a lock with a lease of 2 ms, ten milliseconds later a look, by which it is gone, then a renewal to
#           a minute, and another look. The lock is a key, renewed by PEXPIRE, or a field of a hash, renewed by HPEXPIRE, or made to stay by
#           HPERSIST. The first look is by PTTL or HPTTL, which say -2; for the field also by HGETALL and by HGET. Sixty times each.
# Guess:    the renewal says that there is no such key or field, and there is none, as it was before.
# Seen:     so it is, but for fields in Redis. A field stays in the hash until the server gets round to it, about ten times a second, or until
#           somebody asks for it by HGET. HPTTL and HGETALL leave it there, and hide it. HPEXPIRE does not look at its time: it answers 1, and
#           the field is there again, with its value.
# Matters:  what has been seen to end goes on: a holder that renews too late is told that it has the lock, after a list of holders without it
#           has been acted on. Valkey has the same commands without this. A renewal has to read the value by HGET first, in one script.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

python_packages redis==8.1.0
start_server redis-8.2
redis=$port
start_server valkey-9.1
cat >main.py <<'END'
import sys
import time

from redis import Redis

KEY = [("SET", "lock", "me", "PX", 2)]
FIELD = [("HSET", "lock", "holder", "me", "since", "now"), ("HPEXPIRE", "lock", 2, "FIELDS", 1, "holder")]
renewals = [
    (KEY, ("PTTL", "lock"), ("PEXPIRE", "lock", 60_000), ("GET", "lock")),
    *(
        (FIELD, look, renewal, ("HGET", "lock", "holder"))
        for look, renewal in [
            (("HPTTL", "lock", "FIELDS", 1, "holder"), ("HPEXPIRE", "lock", 60_000, "FIELDS", 1, "holder")),
            (("HPTTL", "lock", "FIELDS", 1, "holder"), ("HPERSIST", "lock", "FIELDS", 1, "holder")),
            (("HGETALL", "lock"), ("HPEXPIRE", "lock", 60_000, "FIELDS", 1, "holder")),
            (("HGET", "lock", "holder"), ("HPEXPIRE", "lock", 60_000, "FIELDS", 1, "holder")),
        ]
    ),
]


def revived(client, take, look, renew, value):
    client.flushall()
    for command in take:
        client.execute_command(*command)
    time.sleep(0.01)
    assert client.execute_command(*look) in (-2, [-2], {b"since": b"now"}, None)
    client.execute_command(*renew)
    return client.execute_command(*value) is not None


for name, port in zip(("Redis", "Valkey"), sys.argv[1:]):
    client = Redis(port=int(port), protocol=2)
    for take, look, renew, value in renewals:
        count = sum(revived(client, take, look, renew, value) for _ in range(60))
        print(f"{name}, {look[0]}, {renew[0]}: {'no' if not count else 'most' if count > 30 else count} locks were there again")
END
expect python3 main.py "$redis" "$port" <<'END'
Redis, PTTL, PEXPIRE: no locks were there again
Redis, HPTTL, HPEXPIRE: most locks were there again
Redis, HPTTL, HPERSIST: no locks were there again
Redis, HGETALL, HPEXPIRE: most locks were there again
Redis, HGET, HPEXPIRE: no locks were there again
Valkey, PTTL, PEXPIRE: no locks were there again
Valkey, HPTTL, HPEXPIRE: no locks were there again
Valkey, HPTTL, HPERSIST: no locks were there again
Valkey, HGETALL, HPEXPIRE: no locks were there again
Valkey, HGET, HPEXPIRE: no locks were there again
END
