#!/usr/bin/env bash
# kazoo and Curator: on one path neither sees the other's lock, and both have it
#
# Run:      kazoo 2.11.0 (PyPI) and Apache Curator 5.9.0 with its ZooKeeper for tests (Maven): each takes a lock on one path, and then the
#           other one asks for it.
# Guess:    the second is refused: both are ZooKeeper's recipe, a sequential ephemeral node for each contender, and the lowest number has
#           the lock.
# Seen:     both are in. kazoo counts nodes with "__lock__" in their names alone, and Curator's have "-lock-". Curator counts all nodes, but
#           takes the number to be what follows "lock-": kazoo's it sorts by their whole names, a UUID, which come after its own.
# Matters:  two services in two languages share a path and not a lock. extra_lock_patterns makes kazoo wait for Curator, and nothing of that
#           kind makes Curator wait for kazoo. Names are part of a lock's format, also where a server gives the numbers.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

python_packages kazoo==2.11.0
jars org.apache.curator:curator-recipes:5.9.0 org.apache.curator:curator-test:5.9.0
cat >holds.py <<'END'
import sys

from kazoo.client import KazooClient

client = KazooClient(sys.argv[1])
client.start()
patterns = ["-lock-"] if "patterns" in sys.argv else []
lock = client.Lock(sys.argv[2], extra_lock_patterns=patterns)
print(lock.acquire(blocking=False), flush=True)
sys.stdin.read()
client.stop()
END
cat >Main.java <<'END'
import java.io.*;
import java.util.*;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.*;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;
import org.apache.curator.test.TestingServer;

class Main {
    static Process kazoo(String server, String path, String... options) throws Exception {
        var command = new ArrayList<>(List.of("python3", "holds.py", server, path));
        command.addAll(List.of(options));
        return new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
    }

    static String answer(Process kazoo) throws Exception {
        return new BufferedReader(new InputStreamReader(kazoo.getInputStream())).readLine();
    }

    static void end(Process kazoo) throws Exception {
        kazoo.getOutputStream().close();
        kazoo.waitFor();
    }

    public static void main(String[] args) throws Exception {
        TestingServer server = new TestingServer();
        CuratorFramework client = CuratorFrameworkFactory.newClient(server.getConnectString(), new RetryOneTime(100));
        client.start();

        Process first = kazoo(server.getConnectString(), "/kazoo-first");
        System.out.println("kazoo: " + answer(first));
        System.out.println("  Curator: " + new InterProcessMutex(client, "/kazoo-first").acquire(1, TimeUnit.SECONDS));
        end(first);

        System.out.println("Curator: " + new InterProcessMutex(client, "/curator-first").acquire(1, TimeUnit.SECONDS));
        Process second = kazoo(server.getConnectString(), "/curator-first");
        System.out.println("  kazoo: " + answer(second));
        end(second);
        Process third = kazoo(server.getConnectString(), "/curator-first", "patterns");
        System.out.println("  kazoo with extra_lock_patterns: " + answer(third));
        end(third);
        System.exit(0);
    }
}
END
expect java_main <<'END'
kazoo: True
  Curator: true
Curator: true
  kazoo: True
  kazoo with extra_lock_patterns: False
END
