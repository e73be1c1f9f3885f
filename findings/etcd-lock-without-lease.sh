#!/usr/bin/env bash
# etcd: the server's Lock with lease 0 is gone after a minute, and a key that is put with lease 0 stays
#
# Run:      etcd-server 3.4.23 (Debian 12), one member, by its JSON gateway: a key is put without a lease, and /v3/lock/lock is asked for a lock
#           without one, and for another one with a lease of ten minutes that nobody keeps alive. Seventy seconds later others ask for them.
# Guess:    lease 0 means no lease, as everywhere in etcd: the lock stays until somebody unlocks it, or the request is refused.
# Seen:     the server makes a lease of its own, of a minute, and nobody keeps it alive. The reply does not say so.
# Matters:  whoever leaves out the lease to be safe from a lost one has the shortest of all, and after a minute two are in the section.
#           An option that is left out should mean what it means in the other calls.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

debian etcd-server=3.4.23-4+b4
port=$(free_port)
run debian/usr/bin/etcd --data-dir data --listen-client-urls "http://127.0.0.1:$port" --advertise-client-urls "http://127.0.0.1:$port" \
	--listen-peer-urls "http://127.0.0.1:$(free_port)"
cat >main.py <<'END'
import base64
import http.client
import json
import sys
import time


def post(path, timeout=30, **fields):
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=timeout)
    connection.request("POST", path, json.dumps(fields))
    return json.load(connection.getresponse())


def name(text):
    return base64.b64encode(text.encode()).decode()


def another_gets(lock):
    lease = post("/v3/lease/grant", TTL=600)["ID"]
    try:
        post("/v3/lock/lock", timeout=5, name=name(lock), lease=lease)
        return True
    except TimeoutError:
        post("/v3/lease/revoke", ID=lease)
        return False


for _ in range(200):
    try:
        post("/v3/kv/put", key=name("key"), value=name("value"))
        break
    except (OSError, KeyError):
        time.sleep(0.1)
print("without a lease:", sorted(post("/v3/lock/lock", name=name("without a lease"))))
lease = post("/v3/lease/grant", TTL=600)["ID"]
print("with a lease:", sorted(post("/v3/lock/lock", name=name("with a lease"), lease=lease)))
for wait in (0, 70):
    time.sleep(wait)
    print(f"after {wait} s: the key without a lease is there:", "kvs" in post("/v3/kv/range", key=name("key")))
    for lock in ("without a lease", "with a lease"):
        print(f"  lock {lock}: another one gets it: {another_gets(lock)}")
END
expect python3 main.py "$port" <<'END'
without a lease: ['header', 'key']
with a lease: ['header', 'key']
after 0 s: the key without a lease is there: True
  lock without a lease: another one gets it: False
  lock with a lease: another one gets it: False
after 70 s: the key without a lease is there: True
  lock without a lease: another one gets it: True
  lock with a lease: another one gets it: False
END
