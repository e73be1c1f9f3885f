#!/usr/bin/env bash
# go-redis, redis-py, ioredis: after a slot has moved, who subscribed to a sharded channel in it hears nothing, and of nothing
#
# Run:      Redis 8.2.3, a cluster of two nodes; go-redis 9.23.0 and rueidis 1.0.79 (Go), redis-py 8.1.0 (PyPI), ioredis 5.11.1 and
#           node-redis 6.3.1 (npm): each subscribes to a sharded channel by SSUBSCRIBE. A message, then the channel's slot moves to the other
#           node, by CLUSTER SETSLOT as in a reshard, and a message each second follows for twelve seconds.
# Guess:    all go on to hear. Cluster clients follow a slot for commands, and the server tells them that it has ended the subscription, by
#           an sunsubscribe that nobody asked for.
# Seen:     node-redis subscribes at the new node. rueidis' Receive returns, without an error, so that the caller can subscribe again. The
#           other three: no error, no closed channel, and a subscription that is not one any more. redis-py would have handed on the server's
#           message, to those who read messages about subscriptions.
# Matters:  the waiters of a lock sleep on after an ordinary reshard, in each process that was there before, until a restart; those who come
#           later hear. Whatever wakes by sharded pub/sub needs a look at the key from time to time, too.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

nodes=()
for _ in 1 2; do
	start_server redis-8.2 --cluster-enabled yes --cluster-announce-ip 127.0.0.1
	nodes+=("$port")
done
# at NODE COMMAND… asks that node.
at() {
	port=${nodes[$1]} ask "${@:2}"
}
{
	at 0 CLUSTER ADDSLOTSRANGE 0 8191
	at 1 CLUSTER ADDSLOTSRANGE 8192 16383
	at 0 CLUSTER MEET 127.0.0.1 "${nodes[1]}"
} >setup.log
for node in 0 1; do
	until [[ $(at "$node" CLUSTER INFO) == *cluster_state:ok*cluster_known_nodes:2* ]]; do
		sleep 0.1
	done
done

go_modules github.com/redis/go-redis/v9@v9.23.0 github.com/redis/rueidis@v1.0.79
python_packages redis==8.1.0
node_packages ioredis@5.11.1 redis@6.3.1
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

func main() {
	ctx, address := context.Background(), []string{"127.0.0.1:" + os.Args[2]}
	if os.Args[1] == "go-redis" {
		for message := range redis.NewClusterClient(&redis.ClusterOptions{Addrs: address}).SSubscribe(ctx, "unlock").Channel() {
			fmt.Println(message.Payload)
		}
		fmt.Println("told")
		return
	}
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: address})
	if err != nil {
		panic(err)
	}
	err = client.Receive(ctx, client.B().Ssubscribe().Channel("unlock").Build(), func(m rueidis.PubSubMessage) { fmt.Println(m.Message) })
	fmt.Println("told", err)
}
END
cat >main.py <<'END'
import sys

from redis.cluster import RedisCluster

subscriber = RedisCluster(port=int(sys.argv[1]), host="127.0.0.1", decode_responses=True).pubsub(ignore_subscribe_messages=True)
subscriber.ssubscribe("unlock")
while True:
    try:
        message = subscriber.get_sharded_message(timeout=1)
    except Exception as error:
        print("told", error, flush=True)
        break
    if message:
        print(message["data"], flush=True)
END
cat >main.js <<'END'
const Redis = require('ioredis');
const { createCluster } = require('redis');

(async () => {
  const port = Number(process.argv[3]);
  let heard = false;
  const hear = (message) => {
    heard = true;
    console.log(message);
  };
  const fail = () => heard && console.log('told'); // errors while it connects are not of interest
  if (process.argv[2] === 'ioredis') {
    const client = new Redis.Cluster([{ host: '127.0.0.1', port }], { shardedSubscribers: true });
    client.on('smessage', (channel, message) => hear(message));
    client.on('error', fail);
    client.on('ready', () => client.ssubscribe('unlock'));
  } else {
    const client = createCluster({ rootNodes: [{ url: `redis://127.0.0.1:${port}` }] });
    client.on('error', fail);
    await client.connect();
    await client.sSubscribe('unlock', hear);
  }
})();
END
go build -o subscriber .

slot=$(at 0 CLUSTER KEYSLOT unlock)
old=$((slot / 8192)) new=$((1 - slot / 8192))
clients=(go-redis redis-py ioredis rueidis node-redis)
for client in "${clients[@]}"; do
	case $client in
	go-redis | rueidis) command=(./subscriber "$client") ;;
	redis-py) command=(python3 main.py) ;;
	*) command=(node main.js "$client") ;;
	esac
	"${command[@]}" "${nodes[0]}" >"$client.out" 2>"$client.err" &
	pids+=("$!")
done
# listens NUMBER tells whether that many subscribe to the channel at its old node.
listens() {
	[[ $(at "$old" PUBSUB SHARDNUMSUB unlock) == *$'\n'"$1" ]]
}
tries=0
until listens 5; do
	((++tries < 300)) || { cat ./*.err >&2 && exit 1; }
	sleep 0.1
done
at "$old" SPUBLISH unlock before >>setup.log
sleep 1
new_id=$(at "$new" CLUSTER MYID)
{
	at "$new" CLUSTER SETSLOT "$slot" IMPORTING "$(at "$old" CLUSTER MYID)"
	at "$old" CLUSTER SETSLOT "$slot" MIGRATING "$new_id"
	at "$new" CLUSTER SETSLOT "$slot" NODE "$new_id"
	at "$old" CLUSTER SETSLOT "$slot" NODE "$new_id"
	for _ in {1..12}; do
		sleep 1
		at "$new" SPUBLISH unlock after
	done
} >>setup.log
sleep 1
report() {
	for client in "${clients[@]}"; do
		echo "$client: $(uniq "$client.out" | paste -sd " ")"
	done
	echo "subscribers at the new node:" "$(at "$new" PUBSUB SHARDNUMSUB unlock | tail -n 1)"
}
expect report <<'END'
go-redis: before
redis-py: before
ioredis: before
rueidis: before told <nil>
node-redis: before after
subscribers at the new node: 1
END
