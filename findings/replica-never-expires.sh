#!/usr/bin/env bash
# Redis and Valkey: a replica has no "expired" event; what expires is deleted there, as if it had been released
#
# Run:      Redis 8.2.3 and Valkey 9.1.2, a primary and a replica of each with notify-keyspace-events KEA: a lock expires, another one is
#           released by DEL, and a hash that has a second field loses one by HPEXPIRE. Clients of both read the key events.
# Guess:    the same events on both: a replica has the key, its expiry and the setting, and it does answer as if the key were gone once its
#           time is over.
# Seen:     "expired" and "hexpired" are events of the primary's. The replica is sent a DEL and an HDEL for them, and tells "del" and
#           "hdel". On a replica nobody can tell a holder's death from an unlock.
# Matters:  who waits for the end of leases by "expired" events, and subscribes at a replica to spare the primary, never hears of a dead
#           holder. It has to listen for both, or at the primary.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cat >main.py <<'END'
import sys
import time

from redis import Redis

servers = {"primary": Redis(port=int(sys.argv[1]), decode_responses=True), "replica": Redis(port=int(sys.argv[2]), decode_responses=True)}
listeners = {name: server.pubsub(ignore_subscribe_messages=True) for name, server in servers.items()}
for listener in listeners.values():
    listener.psubscribe("__keyevent@0__:*")
    listener.get_message(timeout=1)
primary = servers["primary"]
primary.set("left alone", "me", px=500)
primary.set("released", "me", px=60000)
primary.delete("released")
primary.hset("hash", mapping={"me": 1, "other": 1})
primary.hpexpire("hash", 500, "me")
time.sleep(3)
print("keys on the replica:", servers["replica"].keys())
for name, listener in listeners.items():
    events = {"left alone": [], "released": [], "hash": []}
    while message := listener.get_message(timeout=1):
        event = message["channel"].partition(":")[2]
        if event not in ("set", "expire", "hset", "hexpire"):
            events[message["data"]].append(event)
    print(f"{name}:", *(f"{key}: {', '.join(value)};" for key, value in events.items()))
END

main() {
	local server primary
	for server in redis-8.2 valkey-9.1; do
		start_server "$server" --notify-keyspace-events KEA
		primary=$port
		start_server "$server" --notify-keyspace-events KEA --replicaof "127.0.0.1 $primary"
		until [[ $(ask INFO replication) == *master_link_status:up* ]]; do
			sleep 0.1
		done
		echo "$server"
		python3 main.py "$primary" "$port"
	done
}
python_packages redis==8.1.0
expect main <<'END'
redis-8.2
keys on the replica: ['hash']
primary: left alone: expired; released: del; hash: hexpired;
replica: left alone: del; released: del; hash: hdel;
valkey-9.1
keys on the replica: ['hash']
primary: left alone: expired; released: del; hash: hexpired;
replica: left alone: del; released: del; hash: hdel;
END
