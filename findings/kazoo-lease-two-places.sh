#!/usr/bin/env bash
# kazoo: whoever renews the second place of a MultiNonBlockingLease after the first one's end has both, and everybody else is refused
#
# Run:      kazoo 2.11.0 (PyPI) with Curator's ZooKeeper for tests, Curator 5.9.0 (Maven): MultiNonBlockingLease(2) of seventy minutes for
#           "first" and "second". "first" dies, "second" asks again with its identifier every quarter of an hour, and "third" asks after ninety
#           minutes. The time is the lease's argument utcnow. The same with "first" alive, and renewing.
# Guess:    "second" renews its place, and "third" gets the one that is over: two of three, at most and at least.
# Seen:     a renewal begins at the first place again, and takes it, as it is free. The second one stays as it is. "third" is refused by
#           both, which have one holder, until the old place has ended, too.
# Matters:  of two hosts that should do a work one does it, for up to a whole lease after each death, and nothing says so. A renewal has to
#           look for one's own place before it looks for a free one.
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
import datetime
import json
import sys

from kazoo.client import KazooClient

client = KazooClient(f"127.0.0.1:{sys.argv[1]}")
client.start(timeout=60)
for when, alive in ("first is dead", ["second"]), ("first is alive", ["first", "second"]):
    path = "/" + when.replace(" ", "-")

    def ask(who, minute):
        now = datetime.datetime(2026, 1, 1) + datetime.timedelta(minutes=minute)
        return bool(client.MultiNonBlockingLease(2, path, datetime.timedelta(minutes=70), identifier=who, utcnow=lambda: now))

    assert ask("first", 0) and ask("second", 0) and not ask("third", 0)
    for minute in range(15, 91, 15):
        assert all(ask(who, minute) for who in alive)
    got = ask("third", 90)
    places = [json.loads(client.get(f"{path}/{place}/lease_holder")[0])["holder"] for place in range(2)]
    print(f"{when}: third: {'a place' if got else 'refused'}, holders: {', '.join(places)}")
client.stop()
END
expect python3 main.py "$port" 2>python.log <<'END'
first is dead: third: refused, holders: second, second
first is alive: third: refused, holders: first, second
END
