#!/usr/bin/env bash
# kazoo: of five who ask a free semaphore of ten at the same time, without blocking, most are refused
#
# Run:      kazoo 2.11.0 (PyPI) with Curator's ZooKeeper for tests, Curator 5.9.0 (Maven): five clients ask a Semaphore with max_leases=10 by
#           acquire(blocking=False), twenty rounds: at the same time, one after the other, and at the same time with blocking.
# Guess:    all have a place in each round: not to block is not to wait for a place, and there are ten.
# Seen:     acquire first takes a Lock of the semaphore's own, in which places are counted, and without blocking it does not wait for that,
#           either. Whoever comes while another one is inside is told that there is no place.
# Matters:  "are there places?" is answered with "was somebody else asking?". A fleet that starts its jobs by one clock runs one of them,
#           and skips the others on an empty semaphore. What protects a count for a moment has to be waited for in any case.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

python_packages kazoo==2.11.0
jars org.apache.curator:curator-test:5.9.0
cat >Main.java <<'END'
class Main {
    public static void main(String[] args) throws Exception {
        new org.apache.curator.test.TestingServer(Integer.parseInt(args[0]));
        Thread.sleep(Long.MAX_VALUE);
    }
}
END
javac -cp 'jars/*' Main.java
port=$(free_port)
run java -cp 'jars/*:.' Main "$port"
cat >main.py <<'END'
import sys
import threading

from kazoo.client import KazooClient

clients = [KazooClient(f"127.0.0.1:{sys.argv[1]}") for _ in range(5)]
for client in clients:
    client.start(timeout=60)


def round_of(barrier, blocking):
    answers = []

    def ask(client):
        semaphore = client.Semaphore("/places", max_leases=10)
        barrier and barrier.wait()
        answers.append(semaphore.acquire(blocking=blocking))
        barrier and barrier.wait()
        semaphore.release()

    threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
        if not barrier:
            thread.join()
    for thread in threads:
        thread.join()
    return answers.count(True)


for name, barrier, blocking in [
    ("one after the other, blocking=False", None, False),
    ("at the same time", threading.Barrier(5), True),
    ("at the same time, blocking=False", threading.Barrier(5), False),
]:
    places = sum(round_of(barrier, blocking) for _ in range(20))
    print(f"{name}: all got a place: {places == 100}, less than half did: {places < 50}")
for client in clients:
    client.stop()
END
expect python3 main.py "$port" <<'END'
one after the other, blocking=False: all got a place: True, less than half did: False
at the same time: all got a place: True, less than half did: False
at the same time, blocking=False: all got a place: False, less than half did: True
END
