#!/usr/bin/env bash
# Curator: two who each ask for both leases of a free semaphore of two get neither, for as long as they wait
#
# Run:      Apache Curator 5.9.0 with its ZooKeeper for tests (Maven): two clients, each with an InterProcessSemaphoreV2 of two leases on
#           one path, ask for two of them at the same time, with two seconds of patience. Ten rounds, the leases are free before each.
#           Then ten rounds in which each asks for one, with thirty.
# Guess:    in each round one of them gets both, and the other one gets them when they are returned: acquire(qty) is one request, "if time
#           expires before all leases are acquired, the subset of acquired leases are automatically closed".
# Seen:     it takes leases one at a time, and lets go of its place in the line in between. Each gets one, both wait for another one until
#           their time is over, and return null from a semaphore that nobody has used. Without a time they would wait for each other.
# Matters:  the semaphore that should prevent a deadlock of several resources makes one of a single one. Whoever needs several places has to
#           get them in one step, or to take a lock around the request.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

jars org.apache.curator:curator-recipes:5.9.0 org.apache.curator:curator-test:5.9.0
cat >Main.java <<'END'
import java.util.*;
import java.util.concurrent.*;
import org.apache.curator.framework.*;
import org.apache.curator.framework.recipes.locks.*;
import org.apache.curator.retry.RetryOneTime;
import org.apache.curator.test.TestingServer;

class Main {
    public static void main(String[] args) throws Exception {
        TestingServer server = new TestingServer();
        List<InterProcessSemaphoreV2> semaphores = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            CuratorFramework client = CuratorFrameworkFactory.newClient(server.getConnectString(), new RetryOneTime(100));
            client.start();
            client.blockUntilConnected();
            semaphores.add(new InterProcessSemaphoreV2(client, "/semaphore", 2));
        }
        ExecutorService threads = Executors.newFixedThreadPool(2);
        for (int quantity : new int[] {2, 1}) {
            int neither = 0, patience = quantity == 2 ? 2 : 30;
            for (int round = 0; round < 10; round++) {
                CyclicBarrier barrier = new CyclicBarrier(2);
                List<Future<Boolean>> got = new ArrayList<>();
                for (InterProcessSemaphoreV2 semaphore : semaphores) {
                    got.add(threads.submit(() -> {
                        barrier.await();
                        Collection<Lease> leases = semaphore.acquire(quantity, patience, TimeUnit.SECONDS);
                        if (leases != null) {
                            semaphore.returnAll(leases);
                        }
                        return leases != null;
                    }));
                }
                if (!got.get(0).get() && !got.get(1).get()) {
                    neither++;
                }
            }
            System.out.println(quantity + " each: there are rounds in which nobody got them: " + (neither > 0));
        }
        System.exit(0);
    }
}
END
expect java_main <<'END'
2 each: there are rounds in which nobody got them: true
1 each: there are rounds in which nobody got them: false
END
