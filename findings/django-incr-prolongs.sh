#!/usr/bin/env bash
# Django: with the file and database caches, incr() gives a counter of two seconds five minutes, each time
#
# Run:      Django 5.2.7 (PyPI) with its caches in memory, in Redis 8.2.3, in files, and in a database (SQLite): add("hits", 0, timeout=2), as
#           a rate limit does, incr("hits") or none, and a look after three seconds.
# Guess:    gone in all of them: incr() changes the value. It takes no timeout, and the one of add() goes on.
# Seen:     in memory and in Redis. For the caches without an incr() of their own Django reads the value and sets it, with the cache's default
#           timeout of 300 seconds. Without incr() the counter ends in time there, too.
# Matters:  "ten in two seconds" is ten in as long as a client keeps trying, and five minutes more. The limit works in development, which
#           has its cache in memory, and so does a test with one request. The same goes for a lock that counts its holders.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages django==5.2.7 redis==8.1.0
cat >main.py <<'END'
import sys
import time

import django
from django.conf import settings

backend = "django.core.cache.backends."
settings.configure(
    CACHES={
        "default": {"BACKEND": backend + "locmem.LocMemCache"},
        "redis": {"BACKEND": backend + "redis.RedisCache", "LOCATION": f"redis://127.0.0.1:{sys.argv[1]}"},
        "files": {"BACKEND": backend + "filebased.FileBasedCache", "LOCATION": "files"},
        "database": {"BACKEND": backend + "db.DatabaseCache", "LOCATION": "cache"},
    },
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "database"}},
)
django.setup()

from django.core.cache import caches  # noqa: E402
from django.core.management import call_command  # noqa: E402

call_command("createcachetable")
for name in "default", "redis", "files", "database":
    cache = caches[name]
    for key in "untouched", "counted":
        cache.add(key, 0, timeout=2)
    cache.incr("counted")
    time.sleep(3)
    print(f"{name}: after three seconds: untouched: {cache.get('untouched')}, counted: {cache.get('counted')}")
END
expect python3 main.py "$port" <<'END'
default: after three seconds: untouched: None, counted: None
redis: after three seconds: untouched: None, counted: None
files: after three seconds: untouched: None, counted: 1
database: after three seconds: untouched: None, counted: 1
END
