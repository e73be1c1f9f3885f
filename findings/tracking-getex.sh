#!/usr/bin/env bash
# Redis and Valkey: what GETEX and SET … GET return is not tracked, and a client that caches it never hears of a change
#
# Run:      Redis 8.2.3, Valkey 9.1.2: a client with CLIENT TRACKING ON reads a key that another one has set, in five ways. Then the other
#           one deletes it.
# Guess:    five messages. What a client has been given it may cache, so the server remembers "the keys that the connection requested": also
#           those of a script that reads, although EVAL is no command of reading.
# Seen:     GET and the script are told. After GETEX, with or without a new time, and after a SET NX GET that was refused and has told who
#           the holder is, no message comes: what is called a write command is not tracked, also when it only reads.
# Matters:  a session that is read by GETEX, to prolong it, stays in the client's cache after its logout. And whoever asks for a lock by
#           SET NX GET, to wait for the message of its end, waits for ever; a GET has to follow.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cat >main.py <<'END'
import socket
import sys


class Client:
    def __init__(self):
        self.socket = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        self.ask("HELLO", "3")

    def ask(self, *words):
        """Sends a command, and returns all that has come when a PING behind it is answered."""
        self.socket.sendall("".join(f"*{len(c)}\r\n" + "".join(f"${len(w)}\r\n{w}\r\n" for w in c) for c in (words, ("PING",))).encode())
        seen = b""
        while not seen.endswith(b"+PONG\r\n"):
            part = self.socket.recv(65536)
            if not part:
                raise SystemExit("disconnected")
            seen += part
        return seen


other = Client()
script = "redis.call('SET', KEYS[1], 'mine', 'NX') return redis.call('GET', KEYS[1])"
for name, words in [
    ("GET", ["GET", "key"]),
    ("a script with SET NX and GET", ["EVAL", script, "1", "key"]),
    ("GETEX", ["GETEX", "key"]),
    ("GETEX with a time", ["GETEX", "key", "EX", "60"]),
    ("SET NX GET", ["SET", "key", "mine", "NX", "GET"]),
]:
    other.ask("SET", "key", "theirs", "EX", "60")
    client = Client()
    client.ask("CLIENT", "TRACKING", "ON")
    value = client.ask(*words)
    other.ask("DEL", "key")
    print(f"{name}: read: {b'theirs' in value}, told of the end: {b'invalidate' in client.ask('PING')}")
END
for server in redis-8.2 valkey-9.1; do
	start_server "$server"
	echo "$server"
	expect python3 main.py "$port" <<'END'
GET: read: True, told of the end: True
a script with SET NX and GET: read: True, told of the end: True
GETEX: read: True, told of the end: False
GETEX with a time: read: True, told of the end: False
SET NX GET: read: True, told of the end: False
END
done
