#!/usr/bin/env bash
# Dask: a MultiLock whose holder died stays locked for ever, and MultiLock(["x"]) enters beside whoever has Lock("x")
#
# Run:      distributed 2026.8.0 (PyPI) with a scheduler in the process, lease-timeout 4 s in place of 30: a process that has Lock("x") and
#           MultiLock(["y", "z"]) is killed, and another client asks for each, with a patience of twenty seconds. Before that, while it has
#           them, it asks for Lock("x") and MultiLock(["x"]), for a second.
# Guess:    Lock and MultiLock are one kind of lock, one for a name and one for several: they exclude each other, and both are free when the
#           lease of a dead holder has ended.
# Seen:     they have nothing in common. Lock has a lease, which the client renews. MultiLock has a list in the scheduler, whose entries are
#           removed by release() alone, and nothing looks whether their client still exists.
# Matters:  a job that begins to lock two resources in place of one is not excluded any more by those that lock one, and after the first
#           crash, as of a worker without memory, all others wait until the scheduler is restarted.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

python_packages distributed==2026.8.0
export DASK_DISTRIBUTED__SCHEDULER__LOCKS__LEASE_TIMEOUT=4s DASK_DISTRIBUTED__SCHEDULER__LOCKS__LEASE_VALIDATION_INTERVAL=1s
cat >holds.py <<'END'
import sys
import time

from distributed import Client, Lock, MultiLock

client = Client(sys.argv[1])
one, several = Lock("x"), MultiLock(["y", "z"])
one.acquire()
several.acquire()
print("holds", flush=True)
time.sleep(600)
END
cat >main.py <<'END'
import subprocess
import sys

from distributed import Client, LocalCluster, Lock, MultiLock


def ask(when, name, lock, patience):
    got = lock.acquire(timeout=patience)
    print(f"{when}, {name}: {got}")
    if got:
        lock.release()


if __name__ == "__main__":
    with LocalCluster(n_workers=0, dashboard_address=None) as cluster, Client(cluster):
        with subprocess.Popen([sys.executable, "holds.py", cluster.scheduler_address], stdout=subprocess.PIPE) as holder:
            holder.stdout.readline()
            ask("held", 'Lock("x")', Lock("x"), 1)
            ask("held", 'MultiLock(["x"])', MultiLock(["x"]), 1)
            ask("held", 'MultiLock(["y"])', MultiLock(["y"]), 1)
            holder.kill()
        ask("its holder is dead", 'Lock("x")', Lock("x"), 20)
        ask("its holder is dead", 'MultiLock(["y"])', MultiLock(["y"]), 20)
END
expect python3 main.py <<'END'
held, Lock("x"): False
held, MultiLock(["x"]): True
held, MultiLock(["y"]): False
its holder is dead, Lock("x"): True
its holder is dead, MultiLock(["y"]): False
END
