#!/usr/bin/env bash
# go-redis, ioredis, node-redis: in a Valkey cluster with databases, a client with database 1 in its URL works in database 0
#
# Run:      Valkey 9.1.2 as a cluster of one node with --cluster-databases 16; clients for clusters with database 1, in the URL and as an option:
#           go-redis 9.23.0, rueidis 1.0.79 (Go), ioredis 5.11.1, node-redis 6.3.1 (npm), redis-py 8.1.0 (PyPI). Each sets a key.
# Guess:    database 1, as the same URL gives for a single server, or an error, as long as the client does not know of databases in a cluster.
# Seen:     redis-py refuses. go-redis drops it, in the URL and as an option. node-redis drops the one in the URL of its root nodes, and
#           ioredis the one in the URL of a start node; as an option both use it. rueidis uses it.
# Matters:  two applications that are told apart by their database, as they were before they moved to a cluster, share their locks' names,
#           or two languages of one application do not. No client says a word, and each alone passes its tests.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_cluster valkey-9.1 --cluster-databases 16
go_modules github.com/redis/go-redis/v9@v9.23.0 github.com/redis/rueidis@v1.0.79
cat >main.go <<'END'
package main

import (
	"context"
	"os"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	ctx, address := context.Background(), "127.0.0.1:"+os.Args[1]
	url := redis.NewClusterClient(must(redis.ParseClusterURL("redis://" + address + "/1")))
	must(url.Set(ctx, "go-redis, URL", "me", 0).Result())
	option := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{address}, IsClusterMode: true, DB: 1})
	must(option.Set(ctx, "go-redis, option", "me", 0).Result())
	other := must(rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{address}, SelectDB: 1}))
	must(0, other.Do(ctx, other.B().Set().Key("rueidis, option").Value("me").Build()).Error())
}
END
node_packages ioredis@5.11.1 redis@6.3.1
cat >main.js <<'END'
const Redis = require('ioredis');
const { createCluster } = require('redis');

const port = Number(process.argv[2]);
const url = `redis://127.0.0.1:${port}/1`;

(async () => {
  for (const [name, cluster] of [
    ['URL', new Redis.Cluster([url])],
    ['option', new Redis.Cluster([{ host: '127.0.0.1', port }], { redisOptions: { db: 1 } })],
  ]) {
    await cluster.set(`ioredis, ${name}`, 'me');
    cluster.disconnect();
  }
  for (const [name, options] of [
    ['URL', { rootNodes: [{ url }] }],
    ['option', { rootNodes: [{ socket: { port } }], defaults: { database: 1 } }],
  ]) {
    const cluster = await createCluster(options).connect();
    await cluster.set(`node-redis, ${name}`, 'me');
    cluster.destroy();
  }
})();
END
python_packages redis==8.1.0
cat >main.py <<'END'
import sys

from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException

for name, connect in (
    ("URL", lambda: RedisCluster.from_url(f"redis://127.0.0.1:{sys.argv[1]}/1")),
    ("option", lambda: RedisCluster(host="127.0.0.1", port=int(sys.argv[1]), db=1)),
):
    try:
        connect().set(f"redis-py, {name}", "me")
    except RedisClusterException:
        print(f"refused: redis-py, {name}")
END

main() {
	go run . "$port"
	node main.js "$port"
	python3 main.py "$port"
	for database in 0 1; do
		ask -n "$database" KEYS '*' | sort | sed "s/^/database $database: /"
	done
}
expect main <<'END'
refused: redis-py, URL
refused: redis-py, option
database 0: go-redis, URL
database 0: go-redis, option
database 0: ioredis, URL
database 0: node-redis, URL
database 1: ioredis, option
database 1: node-redis, option
database 1: rueidis, option
END
