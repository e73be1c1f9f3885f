#!/usr/bin/env bash
# Redis and Valkey: a hash whose only field has expired still exists, and SET NX is refused for a key without a value
#
# Run:      Redis 8.2.3 and Valkey 9.1.2: a hash with one field, HPEXPIRE for 3 ms, and 10 ms later one of five commands. Fifty hashes for
#           each command, and fifty with PEXPIRE on the key, to compare.
# Guess:    as with keys: what has expired is gone for whoever asks, however long the server takes to remove it; and a hash without
#           fields is no key.
# Seen:     HGET finds nothing, but EXISTS says 1, HLEN counts the field, and SET NX is refused, until a job of the server has come by,
#           ten times a second. In Redis HGET removes the key, in Valkey it stays after that, too.
# Matters:  a lock with a lease for each owner's field must not ask by EXISTS, HLEN or SET NX whether it is free: for a moment nobody has
#           it and nobody gets it. Asking by field finds the truth.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

python_packages redis==8.1.0
cat >main.py <<'END'
import sys
import time

import redis

client = redis.Redis(port=int(sys.argv[1]), decode_responses=True)
commands = {
    "HGET": lambda key: client.hget(key, "owner") is not None,
    "EXISTS": lambda key: client.exists(key) == 1,
    "HLEN": lambda key: client.hlen(key) == 1,
    "SET NX": lambda key: client.set(key, "owner", nx=True) is None,
    "EXISTS after HGET": lambda key: client.hget(key, "owner") is None and client.exists(key) == 1,
}
for what, there in commands.items():
    seen = {"field": 0, "key": 0}
    for expires in seen:
        for i in range(50):
            key = f"{what} {expires} {i}"
            client.hset(key, "owner", 1)
            client.hpexpire(key, 3, "owner") if expires == "field" else client.pexpire(key, 3)
            time.sleep(0.01)
            seen[expires] += there(key)
    print(f"{what}: there after the field's expiry: {'mostly' if seen['field'] > 25 else seen['field']}, after the key's: {seen['key']}")
END
for server in redis-8.2 valkey-9.1; do
	start_server "$server"
	stays=$([[ $server == redis-8.2 ]] && echo 0 || echo mostly)
	echo "$server"
	expect python3 main.py "$port" <<END
HGET: there after the field's expiry: 0, after the key's: 0
EXISTS: there after the field's expiry: mostly, after the key's: 0
HLEN: there after the field's expiry: mostly, after the key's: 0
SET NX: there after the field's expiry: mostly, after the key's: 0
EXISTS after HGET: there after the field's expiry: $stays, after the key's: 0
END
done
