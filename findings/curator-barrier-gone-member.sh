#!/usr/bin/env bash
# Curator: whoever gave up waiting at a double barrier is still counted, and cannot come back
#
# Run:      Apache Curator 5.9.0 with its ZooKeeper for tests (Maven): a DistributedDoubleBarrier of three. A member enters with a second of
#           patience, and asks for the barrier again. Then two others enter, with five seconds.
# Guess:    the first one's time is over, and it may try again; the two others wait in vain, since there are no three who are in.
# Seen:     false after the second, but the member's node stays for as long as its session. Its second enter() fails with NodeExists, and
#           the two others are let in at once, with one who is not there.
# Matters:  what should begin with all of them begins with too few, and with no error to those. A wait that ends without success has to take
#           back what it announced.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

jars org.apache.curator:curator-recipes:5.9.0 org.apache.curator:curator-test:5.9.0
cat >Main.java <<'END'
import java.util.*;
import java.util.concurrent.*;
import org.apache.curator.framework.*;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.retry.RetryOneTime;
import org.apache.curator.test.TestingServer;

class Main {
    static DistributedDoubleBarrier member(TestingServer server) {
        CuratorFramework client = CuratorFrameworkFactory.newClient(server.getConnectString(), new RetryOneTime(100));
        client.start();
        return new DistributedDoubleBarrier(client, "/barrier", 3);
    }

    public static void main(String[] args) throws Exception {
        TestingServer server = new TestingServer();
        DistributedDoubleBarrier first = member(server);
        System.out.println("first: " + first.enter(1, TimeUnit.SECONDS));
        try {
            System.out.println("first, again: " + first.enter(1, TimeUnit.SECONDS));
        } catch (Exception e) {
            System.out.println("first, again: " + e.getClass().getSimpleName());
        }
        ExecutorService threads = Executors.newFixedThreadPool(2);
        List<Future<Boolean>> others = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            DistributedDoubleBarrier other = member(server);
            others.add(threads.submit(() -> other.enter(5, TimeUnit.SECONDS)));
        }
        System.out.println("two others: " + others.get(0).get() + " " + others.get(1).get());
        System.exit(0);
    }
}
END
expect java_main <<'END'
first: false
first, again: NodeExistsException
two others: true true
END
