#!/usr/bin/env bash
# Curator: where somebody has used the lock "/shards/0", nobody gets "/shards"; "/shards/1" and "/shards/eu" do no harm
#
# Run:      Apache Curator 5.9.0 with its ZooKeeper for tests (Maven): an InterProcessMutex of "/shards-N/N" is acquired, then one of
#           "/shards-N", for several N. The first is released, and the second acquired again; the node "/shards-N/N" is deleted.
# Guess:    two paths are two locks: the recipe asks for the order of the nodes that it made and named itself.
# Seen:     it sorts all children, by what follows "lock-" or else by the whole name, and the first one has the lock. "0" sorts before
#           "0000000000": first in line is the node that the other lock is under, and it is nobody's turn. A release leaves that node.
# Matters:  a lock for all shards and one for each are a usual pair, and shards are numbered from 0. Tests with most other names pass.
#           No lock's path may be inside another's.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

jars org.apache.curator:curator-recipes:5.9.0 org.apache.curator:curator-test:5.9.0
cat >Main.java <<'END'
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.*;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;
import org.apache.curator.test.TestingServer;

class Main {
    static boolean acquired(CuratorFramework client, String path, int seconds) throws Exception {
        InterProcessMutex mutex = new InterProcessMutex(client, path);
        boolean acquired = mutex.acquire(seconds, TimeUnit.SECONDS);
        if (acquired) {
            mutex.release();
        }
        return acquired;
    }

    public static void main(String[] args) throws Exception {
        TestingServer server = new TestingServer();
        CuratorFramework client = CuratorFrameworkFactory.newClient(server.getConnectString(), new RetryOneTime(100));
        client.start();
        for (String name : new String[] {"eu", "2", "1", "0"}) {
            String whole = "/shards-" + name, part = whole + "/" + name;
            InterProcessMutex mutex = new InterProcessMutex(client, part);
            mutex.acquire();
            int patience = name.equals("0") ? 2 : 30;
            System.out.println(part + " is held, " + whole + ": " + acquired(client, whole, patience));
            mutex.release();
            System.out.println("  released: " + acquired(client, whole, patience));
        }
        client.delete().forPath("/shards-0/0");
        System.out.println("  its node deleted: " + acquired(client, "/shards-0", 30));
        System.exit(0);
    }
}
END
expect java_main <<'END'
/shards-eu/eu is held, /shards-eu: true
  released: true
/shards-2/2 is held, /shards-2: true
  released: true
/shards-1/1 is held, /shards-1: true
  released: true
/shards-0/0 is held, /shards-0: false
  released: false
  its node deleted: true
END
