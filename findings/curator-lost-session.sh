#!/usr/bin/env bash
# Curator: acquire() of an InterProcessMutex succeeds, after its session has ended and while another process has the lock
#
# Run:      Apache Curator 5.9.0 with its ZooKeeper for tests (Maven): a thread has the mutex, its session ends, and another client gets
#           the mutex. The first thread acquires again.
# Guess:    that is a call to ZooKeeper, on a session that is new by now: it waits, and returns false. One is asked to listen for lost
#           sessions because of the section that is under way, not for those that begin later.
# Seen:     it is a re-entry: the thread is known as the owner until it releases, whatever has become of its node. acquire() adds one to
#           a number in memory and returns true; so does each one inside, and both releases succeed.
# Matters:  a re-entry must not be granted on memory alone: it has to know that the outer hold is lost. Code that "takes the lock again,
#           to be sure" is told that it has it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

jars org.apache.curator:curator-recipes:5.9.0 org.apache.curator:curator-test:5.9.0
cat >Main.java <<'END'
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.*;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;
import org.apache.curator.test.TestingServer;
import org.apache.zookeeper.ZooKeeper;

class Main {
    static CuratorFramework open(TestingServer server) {
        CuratorFramework client = CuratorFrameworkFactory.newClient(server.getConnectString(), new RetryOneTime(100));
        client.start();
        return client;
    }

    public static void main(String[] args) throws Exception {
        TestingServer server = new TestingServer();
        CuratorFramework one = open(server), other = open(server);
        InterProcessMutex mutex = new InterProcessMutex(one, "/report");
        mutex.acquire();
        ZooKeeper session = one.getZookeeperClient().getZooKeeper();
        new ZooKeeper(server.getConnectString(), 10_000, event -> {}, session.getSessionId(), session.getSessionPasswd()).close();
        System.out.println("the other acquires: " + new InterProcessMutex(other, "/report").acquire(60, TimeUnit.SECONDS));
        one.create().forPath("/connected-again");
        System.out.println("a new mutex acquires: " + new InterProcessMutex(one, "/report").acquire(1, TimeUnit.SECONDS));
        System.out.println("the same one acquires: " + mutex.acquire(1, TimeUnit.SECONDS));
        mutex.release();
        mutex.release();
        System.out.println("both releases succeed");
        System.exit(0);
    }
}
END
expect java_main <<'END'
the other acquires: true
a new mutex acquires: false
the same one acquires: true
both releases succeed
END
