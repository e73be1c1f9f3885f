#!/usr/bin/env bash
# fasteners and filelock: on one lock file neither sees the other's lock, and both have it
#
# Run:      fasteners 0.20 and filelock 4.3.1 (PyPI): one process has the lock of a file by the one library, and another process asks for it,
#           by each of the two.
# Guess:    the second is refused: both are advisory locks of the kernel on one file, by a module that is named fcntl.
# Seen:     each refuses its own kind and lets the other one in. fasteners' InterProcessLock calls lockf, whose locks belong to a process,
#           filelock's FileLock calls flock, whose locks belong to an open file, and Linux keeps the two apart.
# Matters:  a lock file that an operator's script, a service and its libraries have in common is not one lock. Part of a lock file's format
#           is the call: flock(1) is filelock's kind, Java's FileChannel.lock is that of fasteners.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

python_packages fasteners==0.20 filelock==4.3.1
cat >acquire.py <<'END'
import sys

import fasteners
import filelock


def acquire(library, path):
    if library == "fasteners":
        lock = fasteners.InterProcessLock(path)
        return lock, lock.acquire(blocking=True, timeout=2)
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=2)
        return lock, True
    except filelock.Timeout:
        return lock, False


lock, got = acquire(*sys.argv[1:])
print(got, flush=True)
sys.stdin.read()
END
cat >main.py <<'END'
import subprocess
import sys


def ask(library, path):
    process = subprocess.Popen([sys.executable, "acquire.py", library, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


libraries = "fasteners", "filelock"
for first in libraries:
    holder, got = ask(first, first + ".lock")
    print(f"{first}: {got}")
    for second in libraries:
        other, got = ask(second, first + ".lock")
        print(f"  {second} in another process: {got}")
        other.communicate()
    holder.communicate()
END
expect python3 main.py <<'END'
fasteners: True
  fasteners in another process: False
  filelock in another process: True
filelock: True
  fasteners in another process: True
  filelock in another process: False
END
