#!/usr/bin/env bash
# django-redis: with HerdClient, a lock by add(timeout=5) is there for 65 seconds, and a renewal by set(xx=True) takes one that is gone
#
# Run:      django-redis 7.0.0 with Django 5.2.8 and redis 8.1.0 (PyPI), Redis 8.2.3: with the default client and with HerdClient. A lock is
#           taken by add() for five seconds, and asked for by another after eight. Then the holder of a lock that is gone renews it, by
#           set(xx=True).
# Guess:    the same with both, as the client is a setting: free after five seconds; the renewal is refused. What HerdClient keeps longer
#           are values, to serve them while somebody computes new ones.
# Seen:     HerdClient adds CACHE_HERD_TIMEOUT, 60 s, to the expiry of whatever it writes, and add() meets the key itself, fresh or not. And
#           its set() does not pass on xx: the renewal writes the key, and says True.
# Matters:  the lock of a worker that died is there for 65 s instead of five, and one that lost its lock is told that it has it. A lock in a
#           cache depends on what else the cache is tuned for.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages django-redis==7.0.0 Django==5.2.8 redis==8.1.0
cat >main.py <<'END'
import sys
import time

from django.conf import settings
from django.core.cache import caches

clients = {"default": "DefaultClient", "herd": "HerdClient"}
settings.configure(
    CACHES={
        name: {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"redis://127.0.0.1:{sys.argv[1]}/0",
            "KEY_PREFIX": name,
            "OPTIONS": {"CLIENT_CLASS": f"django_redis.client.{client}"},
        }
        for name, client in clients.items()
    }
)
for name, client in clients.items():
    print(f"{client}:")
    cache = caches[name]
    print("  add:", cache.add("lock", "one", timeout=5))
    print("  add by another at once:", cache.add("lock", "other", timeout=5))
    print("  it ends in more than 50 s:", cache.ttl("lock") > 50)
    time.sleep(8)
    print("  add by another after 8 s:", cache.add("lock", "other", timeout=5))
    print("  renewal of a lock that is gone:", cache.set("gone", "one", timeout=5, xx=True))
    print("  there is one now:", "gone" in cache)
END
expect python3 main.py "$port" <<'END'
DefaultClient:
  add: True
  add by another at once: False
  it ends in more than 50 s: False
  add by another after 8 s: True
  renewal of a lock that is gone: False
  there is one now: False
HerdClient:
  add: True
  add by another at once: False
  it ends in more than 50 s: True
  add by another after 8 s: False
  renewal of a lock that is gone: True
  there is one now: True
END
