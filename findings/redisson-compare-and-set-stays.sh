#!/usr/bin/env bash
# Redisson: compareAndSet removes the expiry, which incrementAndGet keeps
#
# Run:      Redisson 4.7.0 (Maven), Redis 8.2.3: a bucket, a long and a double that expire in a minute; incrementAndGet and addAndGet, then
#           compareAndSet.
# Guess:    all of them change the value alone. set() is the one that starts anew, and has setAndKeepTTL beside it.
# Seen:     compareAndSet is a comparison and a plain SET in a script: with true as the answer the key never expires again.
# Matters:  a leader, a lease or a generation that is taken over by compareAndSet stays when its owner dies. The expiry has to be set
#           again after each, and a crash in between leaves it out.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redisson 4.7.0 <<'END'
RBucket<String> leader = one.getBucket("leader");
RAtomicLong generation = one.getAtomicLong("generation");
RAtomicDouble load = one.getAtomicDouble("load");
leader.set("first", Duration.ofMinutes(1));
generation.set(1);
generation.expire(Duration.ofMinutes(1));
load.set(1);
load.expire(Duration.ofMinutes(1));
generation.incrementAndGet();
load.addAndGet(1);
for (RExpirable key : new RExpirable[] {leader, generation, load}) {
    System.out.println(key.getName() + ": expires: " + (key.remainTimeToLive() > 0));
}
System.out.println("compareAndSet: " + leader.compareAndSet("first", "second") + " " + generation.compareAndSet(2, 3)
    + " " + load.compareAndSet(2, 3));
for (RExpirable key : new RExpirable[] {leader, generation, load}) {
    System.out.println(key.getName() + ": expires: " + (key.remainTimeToLive() > 0));
}
END
expect java_main "$port" <<'END'
leader: expires: true
generation: expires: true
load: expires: true
compareAndSet: true true true
leader: expires: false
generation: expires: false
load: expires: false
END
