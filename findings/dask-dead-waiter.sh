#!/usr/bin/env bash
# Dask: a released lock goes to whoever waited for it and has died since, for the lease of each, and a live waiter comes after them
#
# Run:      distributed 2026.8.0 (PyPI) with a scheduler in the process, lease-timeout 10 s in place of 30: a client has Lock("report"). None,
#           one or two other processes begin to wait for it and are killed. The lock is released, and another client waits for it.
# Guess:    it has it at once. The lease is for holders that die; those who died had nothing, and their connections are closed.
# Seen:     what serves acquire() in the scheduler goes on waiting when its connection has ended. It gets the lock for a client that is
#           gone, which lasts for a lease; then the next dead one's gets it.
# Matters:  the more impatient the waiters, as jobs that are restarted while they wait, the longer nobody has a lock that is free. A lock
#           server has to take a waiter out of its line when its connection ends.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

python_packages distributed==2026.8.0
export DASK_DISTRIBUTED__SCHEDULER__LOCKS__LEASE_TIMEOUT=10s DASK_DISTRIBUTED__SCHEDULER__LOCKS__LEASE_VALIDATION_INTERVAL=1s
cat >waits.py <<'END'
import sys

from distributed import Client, Lock

client = Client(sys.argv[1])
lock = Lock("report")
lock.register()
print("waits", flush=True)
lock.acquire()
END
cat >main.py <<'END'
import subprocess
import sys
import time

from distributed import Client, LocalCluster, Lock

if __name__ == "__main__":
    with LocalCluster(n_workers=0, dashboard_address=None) as cluster, Client(cluster):
        for dead in range(3):
            lock, other = Lock("report"), Lock("report")
            lock.acquire()
            for _ in range(dead):
                with subprocess.Popen([sys.executable, "waits.py", cluster.scheduler_address], stdout=subprocess.PIPE) as waiter:
                    waiter.stdout.readline()
                    time.sleep(3)
                    waiter.kill()
            time.sleep(3)
            lock.release()
            time.sleep(1)
            begin = time.monotonic()
            other.acquire()
            seconds = time.monotonic() - begin
            waited = "at once" if seconds < 5 else f"after {seconds / 10:.0f} lease(s)"
            print(f"{dead} dead waiters, another one has the lock {waited}")
            other.release()
END
expect python3 main.py <<'END'
0 dead waiters, another one has the lock at once
1 dead waiters, another one has the lock after 1 lease(s)
2 dead waiters, another one has the lock after 2 lease(s)
END
