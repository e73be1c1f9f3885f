#!/usr/bin/env bash
# diskcache: each process that starts gives throttle() its whole allowance again, for all processes
#
# Run:      diskcache 5.6.3 (PyPI): a function with throttle(cache, 3, 3600), which is three calls an hour, in a cache that processes share.
#           The first process makes four calls. Then four more start, with one call each, the first one goes on, and a sixth only imports.
# Guess:    the fourth call waits for 20 minutes, as does each of the others: what was used is in the cache, which is what it is there for.
# Seen:     the fourth one waits. Each later process goes through at once, since decorating the function writes a full bucket over what
#           is there: also for the first process, which after the import of the last one alone is let through again.
# Matters:  the limit holds between processes that started together and stay. Cron jobs, commands, and servers that restart have none,
#           and each deployment lifts it for all. What is shared has to be created only if it is not there.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

python_packages diskcache==5.6.3
cat >throttled.py <<'END'
import diskcache


class Waits(Exception):
    pass


def waits(seconds):
    raise Waits(f"waits for {round(seconds / 60)} minutes")


cache = diskcache.Cache("cache")


@diskcache.throttle(cache, 3, 3600, name="mail", sleep_func=waits)
def mail():
    return "goes through"


def call(who):
    try:
        print(who, mail())
    except Waits as e:
        print(who, e)
END
cat >main.py <<'END'
import subprocess
import sys

from throttled import call

for number in range(1, 5):
    call(f"process 1, call {number}:")
sys.stdout.flush()
for number in range(2, 6):
    subprocess.run([sys.executable, "-c", f"import throttled; throttled.call('process {number}:')"], check=True)
call("process 1 again:")
for number in range(2):
    call("process 1 again:")
sys.stdout.flush()
subprocess.run([sys.executable, "-c", "import throttled"], check=True)
print("process 6 imports")
call("process 1 again:")
END
expect python3 main.py <<'END'
process 1, call 1: goes through
process 1, call 2: goes through
process 1, call 3: goes through
process 1, call 4: waits for 20 minutes
process 2: goes through
process 3: goes through
process 4: goes through
process 5: goes through
process 1 again: goes through
process 1 again: goes through
process 1 again: waits for 20 minutes
process 6 imports
process 1 again: goes through
END
