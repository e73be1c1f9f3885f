#!/usr/bin/env bash
# etcd: each restart gives all leases their whole time again, and a dead holder's lock outlives them
#
# Run:      etcd-server 3.4.23 (Debian 12), one member, by its JSON gateway: a key with a lease of 15 s that nobody keeps alive, looked at
#           after 20 s. The same while etcd is restarted after every seven seconds, three times, and 25 s after that.
# Guess:    it is gone both times: a lease ends when its time is over, and a restart is not its holder's sign of life.
# Seen:     after each restart the lease has 15 s again, as if it were new, and the key is there after more than 21.
# Matters:  while etcd restarts again and again, the lock of a crashed process stays for that whole time and a lease more, and an outage
#           is when processes crash. That a dead holder blocks others for a lease at most holds for a quiet etcd alone.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

debian etcd-server=3.4.23-4+b4
unset LD_LIBRARY_PATH
cat >main.py <<'END'
import base64
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

client, peer = (f"http://127.0.0.1:{port}" for port in sys.argv[1:])


def call(path, **body):
    request = urllib.request.Request(f"{client}/v3/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.load(reply)


def start():
    process = subprocess.Popen(
        ["debian/usr/bin/etcd", "--data-dir", "data", "--listen-client-urls", client, "--advertise-client-urls", client,
         "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(300):
        try:
            call("kv/range", key="AA==")
            return process
        except (OSError, urllib.error.URLError):
            time.sleep(0.1)
    process.terminate()
    sys.exit("no server")


process = start()
try:
    key = base64.b64encode(b"lock").decode()
    for restarts in [False, True]:
        lease = call("lease/grant", TTL=15)["ID"]
        call("kv/put", key=key, value=key, lease=lease)

        def look(when):
            locks, left = call("kv/range", key=key).get("count", 0), call("lease/timetolive", ID=lease)["TTL"]
            print(f"{when}: locks: {locks}, a new lease's time left: {left == '15'}")

        if not restarts:
            time.sleep(20)
            look("after 20 s")
            continue
        for restart in range(3):
            time.sleep(7)
            process.terminate()
            process.wait()
            process = start()
            look(f"after restart {restart + 1}, at least {7 * (restart + 1)} s")
        time.sleep(25)
        look("25 s later")
finally:
    process.terminate()
    process.wait()
END
expect python3 main.py "$(free_port)" "$(free_port)" <<'END'
after 20 s: locks: 0, a new lease's time left: False
after restart 1, at least 7 s: locks: 1, a new lease's time left: True
after restart 2, at least 14 s: locks: 1, a new lease's time left: True
after restart 3, at least 21 s: locks: 1, a new lease's time left: True
25 s later: locks: 0, a new lease's time left: False
END
