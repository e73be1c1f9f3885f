#!/usr/bin/env bash
# go-redis, redis-py, ioredis, node-redis: SET NX says that somebody else has the lock, and it is the caller
#
# Run:      go-redis 9.23.0 (Go), redis 8.1.0 (PyPI), ioredis 6.0.0 and redis 6.3.1 (npm), with defaults, Redis 8.2.3 behind a proxy that
#           cuts the connection of one SET NX PX after Redis has answered it.
# Guess:    an error, after which one asks who the owner is. What may have run and must not run twice is not repeated without being asked:
#           net/http and database/sql do not.
# Seen:     three of the four send it again on a new connection, meet the caller's own lock, and return the plain "taken". Only node-redis
#           reports the error.
# Matters:  whoever believes it waits for himself until the lease ends, and without one for ever. "Not acquired" is only true after a look
#           at the owner, or with retries off.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redis=$port
cat >proxy.py <<'END'
import socket
import sys
import threading

cut = set()  # keys whose first reply was lost


def forward(source, target, state, reply):
    try:
        while data := source.recv(65536):
            if reply and state:
                break
            for word in data.split(b"\r\n"):
                if not reply and word.startswith(b"lock:") and b"nx" in data.lower() and word not in cut:
                    cut.add(word)
                    state.append(word)
            target.sendall(data)
    except OSError:
        pass
    for connection in source, target:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    client, server, state = listener.accept()[0], socket.create_connection(("127.0.0.1", int(sys.argv[2]))), []
    threading.Thread(target=forward, args=(client, server, state, False), daemon=True).start()
    threading.Thread(target=forward, args=(server, client, state, True), daemon=True).start()
END
port=$(free_port)
run python3 proxy.py "$port" "$redis"
answers "$port"

go_modules github.com/redis/go-redis/v9@v9.23.0
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

func main() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]})
	fmt.Println(client.SetNX(context.Background(), "lock:go-redis", "me", time.Minute).Result())
}
END
python_packages redis==8.1.0
cat >main.py <<'END'
import sys

import redis

try:
    print(redis.Redis(port=int(sys.argv[1])).set("lock:redis-py", "me", nx=True, px=60000))
except redis.ConnectionError as error:
    print("error")
END
node_packages ioredis@6.0.0 redis@6.3.1
cat >main.js <<'END'
const Redis = require('ioredis');
const { createClient } = require('redis');
const port = Number(process.argv[2]);
const report = async (name, set) => console.log(name, await set.catch((error) => `error: ${error.message}`));
(async () => {
  await report('ioredis:', new Redis(port).set('lock:ioredis', 'me', 'PX', 60000, 'NX'));
  const client = createClient({ url: `redis://127.0.0.1:${port}` });
  client.on('error', () => {});
  await client.connect();
  await report('node-redis:', client.set('lock:node-redis', 'me', { PX: 60000, NX: true }));
  process.exit(0);
})();
END

main() {
	echo "go-redis: $(go run . "$port" 2>/dev/null)"
	echo "redis-py: $(python3 main.py "$port")"
	node main.js "$port"
	for name in go-redis redis-py ioredis node-redis; do
		echo "owner for $name: $(port=$redis ask GET "lock:$name")"
	done
}
expect main <<'END'
go-redis: false <nil>
redis-py: None
ioredis: null
node-redis: error: Socket closed unexpectedly
owner for go-redis: me
owner for redis-py: me
owner for ioredis: me
owner for node-redis: me
END
