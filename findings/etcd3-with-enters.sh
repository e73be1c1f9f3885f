#!/usr/bin/env bash
# python-etcd3: "with lock" enters after ten seconds, though another one has the lock
#
# Run:      etcd3 0.12.0 with tenacity 6.3.1 (PyPI), etcd 3.4.23 (Debian): a lock with a ttl of ten minutes is held, and another object of
#           that name is used in a with statement, and by acquire().
# Guess:    it waits for as long as the lock is held, as threading.Lock and redis-py's do in a with statement, or raises an error.
# Seen:     acquire() gives up after ten seconds unless told otherwise, and returns False, which nobody looks at: the section runs beside
#           the holder. is_acquired() in it says so. With a newer tenacity acquire() of a taken lock raises a TypeError instead.
# Matters:  waits below ten seconds work, so that it takes a slow holder to have two. What a with statement calls may not report a refusal
#           by its result.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

debian etcd-server=3.4.23-4+b4
unset LD_LIBRARY_PATH
port=$(free_port)
peer=$(free_port)
run debian/usr/bin/etcd --data-dir data --listen-client-urls "http://127.0.0.1:$port" --advertise-client-urls "http://127.0.0.1:$port" \
	--listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
	--initial-cluster "default=http://127.0.0.1:$peer"
python_packages etcd3==0.12.0 protobuf==3.20.3 grpcio==1.84.0 tenacity==6.3.1
cat >main.py <<'END'
import sys
import time

import etcd3

client = etcd3.client(host="127.0.0.1", port=int(sys.argv[1]))
for _ in range(200):
    try:
        client.status()
        break
    except etcd3.exceptions.ConnectionFailedError:
        time.sleep(0.1)
holder = client.lock("report", ttl=600)
print("holder:", holder.acquire())
with client.lock("report", ttl=600) as lock:
    print("entered, is_acquired():", lock.is_acquired())
    print("holder's is_acquired():", holder.is_acquired())
print("acquire():", client.lock("report", ttl=600).acquire(timeout=1))
END
expect python3 main.py "$port" <<'END'
holder: True
entered, is_acquired(): False
holder's is_acquired(): True
acquire(): False
END
