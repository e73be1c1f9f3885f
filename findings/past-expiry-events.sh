#!/usr/bin/env bash
# Redis and Valkey: an expiry that has passed, as PEXPIRE 0, is a "del" event in Redis, and an "expired" event in Valkey
#
# Run:      Redis 8.2.3, Valkey 8.1.8 and 9.1.2 with notify-keyspace-events KEA: a lock is given an expiry that has passed, by PEXPIRE 0,
#           PEXPIREAT and GETEX PXAT, and a field of a hash by HPEXPIREAT. Another lock is deleted, and one is left to expire.
# Guess:    one list of events for all of them: the fork is from Redis 7.2, and events are what programs are written against.
# Seen:     only DEL and a lease that ends by itself are told alike. What is shortened to nothing is deleted in Redis, "del" and "hdel", and
#           has expired in Valkey, "expired" and "hexpired".
# Matters:  who tells a release from a dead holder by the event counts such an end as the one or the other, by the server. A renewal by
#           PEXPIREAT from a clock that is behind is such an end. Listen for both.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

servers=()
for server in redis-8.2 valkey-8.1 valkey-9.1; do
	start_server "$server" --notify-keyspace-events KEA
	servers+=("$server" "$port")
done
python_packages redis==8.1.0
cat >main.py <<'END'
import sys

from redis import Redis, ResponseError

past = 1_000_000_000_000  # 2001
for name, port in zip(sys.argv[1::2], sys.argv[2::2]):
    client = Redis(port=int(port), decode_responses=True)
    listener = client.pubsub(ignore_subscribe_messages=True)
    listener.psubscribe("__keyevent@0__:*")
    listener.get_message(timeout=5)

    def events():
        client.lpush("mark", "here")
        seen = []
        while (event := listener.get_message(timeout=60)["channel"].partition(":")[2]) != "lpush":
            seen.append(event)
        return seen

    print(name)
    for command, of_field in [
        ("DEL lock", False),
        ("PEXPIRE lock 0", False),
        (f"PEXPIREAT lock {past}", False),
        (f"GETEX lock PXAT {past}", False),
        (f"HPEXPIREAT lock {past} FIELDS 1 me", True),
    ]:
        client.delete("lock")
        if of_field:
            client.hset("lock", mapping={"me": 1, "other": 1})
        else:
            client.set("lock", "me")
        events()
        try:
            client.execute_command(*command.split())
        except ResponseError as error:
            print(f"  {command.split()[0]}: {str(error).split(',')[0]}")
            continue
        print(f"  {command.split()[0]}: {', '.join(events())}")
    client.set("lock", "me", px=100)
    while listener.get_message(timeout=60)["channel"].partition(":")[2] != "expired":
        pass
    print("  left to expire: expired")
END
expect python3 main.py "${servers[@]}" <<'END'
redis-8.2
  DEL: del
  PEXPIRE: del
  PEXPIREAT: del
  GETEX: del
  HPEXPIREAT: hdel
  left to expire: expired
valkey-8.1
  DEL: del
  PEXPIRE: expired
  PEXPIREAT: expired
  GETEX: expired
  HPEXPIREAT: unknown command 'HPEXPIREAT'
  left to expire: expired
valkey-9.1
  DEL: del
  PEXPIRE: expired
  PEXPIREAT: expired
  GETEX: expired
  HPEXPIREAT: hexpired
  left to expire: expired
END
