#!/usr/bin/env bash
# Redisson: whoever waits for a lock while its slot moves to another node sleeps on beside the free lock
#
# Run:      Redisson 4.7.0 (Maven), Redis 8.2.3 as a cluster of two nodes: one client has a lock for 40 s, another waits for it. The slot
#           moves to the other node, with the lock, and 10 s later the holder unlocks.
# Guess:    the waiter gets the lock. Redis ends its sharded subscription with a message, and Redisson follows the slot when it is told
#           MOVED.
# Seen:     with sharded subscriptions, which are used if the server has them, it sleeps until the lease ends that it saw at first. With
#           ShardedSubscriptionMode.OFF it is woken.
# Matters:  resharding makes all who wait in the moved slots deaf, for 30 s with the usual watchdog, for hours with longer leases.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2 --cluster-enabled yes --cluster-announce-ip 127.0.0.1
other=$port
start_cluster redis-8.2
first=$port
ask CLUSTER MEET 127.0.0.1 "$other" >/dev/null
until [[ $(port=$other ask CLUSTER INFO) == *cluster_state:ok* ]]; do
	sleep 0.1
done

redisson 4.7.0 <<'END'
Config config = new Config();
config.useClusterServers().addNodeAddress("redis://127.0.0.1:" + args[0]).setShardedSubscriptionMode(
    org.redisson.config.ShardedSubscriptionMode.valueOf(args[1]));
RedissonClient holder = Redisson.create(config), waiter = Redisson.create(config);
holder.getLock("order").lock(40, TimeUnit.SECONDS);
CompletableFuture<Boolean> waits = CompletableFuture.supplyAsync(() -> {
    waiter.getLock("order").lock(1, TimeUnit.SECONDS);
    return true;
});
Thread.sleep(3_000);
System.out.println("one has it, one waits");
System.in.read(); // until the slot has moved
Thread.sleep(10_000);
holder.getLock("order").unlock();
Thread.sleep(5_000);
System.out.println("subscriptions " + args[1] + ": five seconds after the unlock the waiter has it: " + waits.isDone());
System.exit(0);
END

# move FROM TO moves the slot and the key of the lock.
move() {
	local slot from to
	slot=$(ask CLUSTER KEYSLOT order)
	from=$(port=$1 ask CLUSTER MYID)
	to=$(port=$2 ask CLUSTER MYID)
	port=$2 ask CLUSTER SETSLOT "$slot" IMPORTING "$from"
	port=$1 ask CLUSTER SETSLOT "$slot" MIGRATING "$to"
	port=$1 ask MIGRATE 127.0.0.1 "$2" '' 0 5000 KEYS order
	port=$2 ask CLUSTER SETSLOT "$slot" NODE "$to"
	port=$1 ask CLUSTER SETSLOT "$slot" NODE "$to"
}

main() {
	mkfifo moved
	for mode in ON OFF; do
		exec 8<>moved
		java_main "$first" "$mode" <moved >log &
		until grep -q waits log; do
			sleep 0.1
		done
		if [[ $mode == ON ]]; then
			move "$first" "$other"
		else
			move "$other" "$first"
		fi >moves
		echo >&8
		wait $!
		tail -n 1 log
	done
}
expect main <<'END'
subscriptions ON: five seconds after the unlock the waiter has it: false
subscriptions OFF: five seconds after the unlock the waiter has it: true
END
