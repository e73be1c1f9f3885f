#!/usr/bin/env bash
# tooz: with PostgreSQL there are 65,536 locks, and two of a few hundred names are one
#
# Run:      tooz 9.1.0 with psycopg2-binary 2.9.12 (PyPI), PostgreSQL 16.2 (in pgserver 0.1.4): a coordinator holds the lock of volume 96.
#           Another one asks for those of the volumes 1 to 300, one after the other; then again without a holder.
# Guess:    one refusal. An advisory lock's number has 64 bits, and a name is hashed to as many.
# Seen:     two. The first two bytes of the name's MD5 are the two numbers for pg_advisory_lock: 256 times 256 locks. "volume-96" and
#           "volume-270" are one of them.
# Matters:  among 300 names it is as likely as not that two are one lock: waits that nobody can explain, and a deadlock for those who take
#           two at once. A hash has to be cut to no less than what it is put into.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

python_packages tooz==9.1.0 psycopg2-binary==2.9.12
start_postgres member
cat >main.py <<'END'
import sys
import time

from tooz import coordination

url = f"postgresql://member@127.0.0.1:{sys.argv[1]}/postgres"


def member(name):
    coordinator = coordination.get_coordinator(url, name)
    for _ in range(200):
        try:
            coordinator.start()
            return coordinator
        except coordination.ToozConnectionError:
            time.sleep(0.1)
    raise SystemExit("no PostgreSQL")


def granted(coordinator, volume):
    lock = coordinator.get_lock(b"volume-%d" % volume)
    if not lock.acquire(blocking=False):
        return False
    lock.release()
    return True


one, other = member(b"one"), member(b"other")
held = one.get_lock(b"volume-96")
print("volume-96:", held.acquire())
print("refused to another, of the volumes 1 to 300:", *(v for v in range(1, 301) if not granted(other, v)))
held.release()
print("refused when that is released:", *(v for v in range(1, 301) if not granted(other, v)))
END
expect python3 main.py "$port" <<'END'
volume-96: True
refused to another, of the volumes 1 to 300: 96 270
refused when that is released:
END
