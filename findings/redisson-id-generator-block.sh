#!/usr/bin/env bash
# Redisson: getIdGenerator(name).nextId() skips 5,000 numbers with each call
#
# Run:      Redisson 4.7.0 (Maven), Redis 8.2.3: an id generator with the default block, nextId three times on one object, and three times
#           with getIdGenerator before each.
# Guess:    what getX returns is a handle without a state of its own, which one may get as often as one likes: locks, maps and counters are
#           so. A block of numbers belongs to the client.
# Seen:     the block belongs to the object. Each getIdGenerator takes a new one from Redis and uses one number of it.
# Matters:  as fencing tokens they still rise within one object, but each request pays a round trip, and a column of 32 bits is full after
#           430,000 requests. Keep the object.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redisson 4.7.0 <<'END'
RIdGenerator orders = one.getIdGenerator("orders");
System.out.println("one object: " + orders.nextId() + " " + orders.nextId() + " " + orders.nextId());
System.out.println("an object each: " + one.getIdGenerator("orders").nextId() + " " + one.getIdGenerator("orders").nextId() + " "
    + one.getIdGenerator("orders").nextId());
System.out.println("a counter: " + one.getAtomicLong("counter").incrementAndGet() + " " + one.getAtomicLong("counter").incrementAndGet()
    + " " + one.getAtomicLong("counter").incrementAndGet());
END
expect java_main "$port" <<'END'
one object: 1 2 3
an object each: 5001 10001 15001
a counter: 1 2 3
END
