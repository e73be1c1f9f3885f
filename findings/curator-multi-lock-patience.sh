#!/usr/bin/env bash
# Curator: acquire(4, SECONDS) of a multi-lock of three succeeds after seven
#
# Run:      Apache Curator 5.9.0 with its ZooKeeper for tests (Maven): somebody has the locks of three paths, and releases the first after
#           2.5 s, the second after 5 s, the third after 7.5 s. Another one asks for all in an InterProcessMultiLock, with four seconds.
# Guess:    false after four seconds: the multi-lock is an InterProcessLock, whose acquire "blocks until it's available or the given time
#           expires".
# Seen:     true, after 7.5 s. The time is for each of the locks: with n of them it is up to n times as long.
# Matters:  whoever has four seconds has given up by then, and its caller, too; and until then it has the locks that it got. A time that is
#           passed on has to become less on the way.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

jars org.apache.curator:curator-recipes:5.9.0 org.apache.curator:curator-test:5.9.0
cat >Main.java <<'END'
import java.util.*;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.*;
import org.apache.curator.framework.recipes.locks.*;
import org.apache.curator.retry.RetryOneTime;
import org.apache.curator.test.TestingServer;

class Main {
    static CuratorFramework client(TestingServer server) {
        CuratorFramework client = CuratorFrameworkFactory.newClient(server.getConnectString(), new RetryOneTime(100));
        client.start();
        return client;
    }

    public static void main(String[] args) throws Exception {
        TestingServer server = new TestingServer();
        CuratorFramework one = client(server), other = client(server);
        List<String> paths = List.of("/orders", "/stock", "/invoices");
        List<InterProcessMutex> held = new ArrayList<>();
        for (String path : paths) {
            held.add(new InterProcessMutex(one, path));
        }
        for (InterProcessMutex lock : held) {
            lock.acquire();
        }
        long[] waited = new long[1];
        boolean[] got = new boolean[1];
        Thread asks = new Thread(() -> {
            long start = System.nanoTime();
            try {
                got[0] = new InterProcessMultiLock(other, paths).acquire(4, TimeUnit.SECONDS);
            } catch (Exception e) {
                e.printStackTrace();
            }
            waited[0] = (System.nanoTime() - start) / 1_000_000;
        });
        asks.start();
        for (InterProcessMutex lock : held) {
            Thread.sleep(2500);
            lock.release();
        }
        asks.join();
        System.out.println("acquire(4, SECONDS): " + got[0] + ", after more than seven seconds: " + (waited[0] > 7000));
        System.exit(0);
    }
}
END
expect java_main <<'END'
acquire(4, SECONDS): true, after more than seven seconds: true
END
