#!/usr/bin/env bash
# pymemcache: add() says True to everybody
#
# Run:      pymemcache 4.0.0 and python-memcached 1.62 (PyPI), memcached 1.6.18 (Debian): two clients of each take a lock with add() and an
#           expiry, which memcached grants to one; then get().
# Guess:    True for the first, and False for the second: that is what add() is for.
# Seen:     python-memcached: so. pymemcache sends its writes with "noreply" unless told otherwise, does not learn what memcached did, and
#           says True. Both have the lock. With noreply=False it says what memcached did.
# Matters:  a lock by add() that is ported from another client excludes nobody, and nothing fails. What is not known is neither True nor
#           False: a call that asks for no reply should return None.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

debian memcached=1.6.18-1+deb12u1 libevent-2.1-7=2.1.12-stable-8
python_packages pymemcache==4.0.0 python-memcached==1.62
port=$(free_port)
run debian/usr/bin/memcached -l 127.0.0.1 -p "$port" -u "$(id -un)"
cat >main.py <<'END'
import socket
import sys
import time

import memcache
from pymemcache.client.base import Client

port = int(sys.argv[1])
while True:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            break
    time.sleep(0.1)

print("python-memcached:", *(memcache.Client([f"127.0.0.1:{port}"]).add("one", owner, time=60) != 0 for owner in ("a", "b")))
clients = [Client(("127.0.0.1", port)) for _ in "ab"]
print("pymemcache:", *(client.add("two", owner, expire=60) for client, owner in zip(clients, "ab")))
print("  its owner:", *(client.get("two").decode() for client in clients))
print("  noreply=False:", *(client.add("three", owner, expire=60, noreply=False) for client, owner in zip(clients, "ab")))
END
expect python3 main.py "$port" <<'END'
python-memcached: True False
pymemcache: True True
  its owner: a a
  noreply=False: True False
END
