#!/usr/bin/env bash
# memcached: a lock that is added for one second is as often as not gone after half of it
#
# Run:      memcached 1.6.18 (Debian 12), pymemcache 4.0.0 (PyPI): forty locks, by add with an expiry of one second, each at another moment
#           of a second, and looked at half a second later; and the same with two seconds.
# Guess:    all are there. What has whole seconds may round, and a lease is rounded up: it lasts for at least as long as was asked for.
# Seen:     memcached's clock ticks once a second, and an item ends at the tick that is its number of seconds ahead: one second is any time
#           between none and one. About half of the locks are gone. With two seconds, none is.
# Matters:  a lease of n seconds is one of n - 1 at least. With the shortest one, two are in at once within milliseconds of the first add,
#           and a stampede lock, which is short, does not hold. Ask for one second more than is needed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

debian memcached=1.6.18-1+deb12u1 libevent-2.1-7=2.1.12-stable-8
port=$(free_port)
run debian/usr/bin/memcached -l 127.0.0.1 -p "$port" -u "$(id -un)"
python_packages pymemcache==4.0.0
cat >main.py <<'END'
import sys
import time

from pymemcache.client.base import Client

client = Client(("127.0.0.1", int(sys.argv[1])))
for _ in range(200):
    try:
        client.version()
        break
    except OSError:
        time.sleep(0.1)
for expire in 1, 2:
    gone = 0
    for number in range(40):
        time.sleep(0.125)  # with the look, five eighths of a second later than the one before
        lock = f"lock-{expire}-{number}"
        if not client.add(lock, "holder", expire=expire, noreply=False):
            sys.exit("not added")
        time.sleep(0.5)
        gone += client.add(lock, "other", expire=expire, noreply=False)
    print(f"expire={expire}: others get", "none" if not gone else "a quarter to three quarters" if 10 <= gone <= 30 else gone, "after half a second")
END
expect python3 main.py "$port" <<'END'
expire=1: others get a quarter to three quarters after half a second
expire=2: others get none after half a second
END
