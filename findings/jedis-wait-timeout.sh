#!/usr/bin/env bash
# Jedis: WAIT for three seconds fails after two, and the lock before it is there
#
# Run:      Jedis 6.2.0 (Maven), defaults, Redis 8.2.3 without a replica: BLPOP, XREAD BLOCK and WAIT for 3 s.
# Guess:    all three end after 3 s, with nothing, nothing and 0: they are the commands that are told how long to wait, and Jedis has a
#           special time-out for such.
# Seen:     it has for BLPOP and XREAD. WAIT is an ordinary command, whose answer has to come within the 2 s of the socket's time-out. It
#           raises "Read timed out", and the connection is closed.
# Matters:  a lock that asks for a replica's confirmation fails exactly when a replica is slow, as if Redis did not answer, instead of
#           being told how many have it. The time of WAIT has to be shorter than the socket's.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
jars redis.clients:jedis:6.2.0
cat >Main.java <<'END'
import java.util.Map;
import java.util.function.Supplier;
import redis.clients.jedis.*;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.params.*;

class Main {
    static void report(String name, Supplier<Object> call) {
        long start = System.nanoTime();
        String end;
        try {
            end = String.valueOf(call.get());
        } catch (JedisConnectionException e) {
            end = e.getMessage();
        }
        System.out.println(name + ": " + end + ", after more than 2.9 s: " + (System.nanoTime() - start > 2_900_000_000L));
    }

    public static void main(String[] args) {
        try (var redis = new Jedis("127.0.0.1", Integer.parseInt(args[0]))) {
            report("BLPOP", () -> redis.blpop(3, "list"));
            report("XREAD", () -> redis.xread(XReadParams.xReadParams().block(3000), Map.of("stream", new StreamEntryID(0))));
            redis.set("lock", "me", SetParams.setParams().nx().px(60_000));
            report("WAIT", () -> redis.waitReplicas(1, 3000));
            System.out.println("connection is broken: " + redis.isBroken());
        }
    }
}
END
expect java_main "$port" <<'END'
BLPOP: null, after more than 2.9 s: true
XREAD: null, after more than 2.9 s: true
WAIT: java.net.SocketTimeoutException: Read timed out, after more than 2.9 s: false
connection is broken: true
END
