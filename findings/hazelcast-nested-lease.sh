#!/usr/bin/env bash
# Hazelcast: a lock() and unlock() inside a section with a lease take away the lease, and the lock stays
#
# Run:      Hazelcast 5.5.0 (Maven), one member: a thread has map.lock(key, 5, SECONDS), and does not unlock. Another one asks for the key
#           after ten seconds. Once as it is; once with a lock(key) and unlock(key) inside; and once with lock(key) outside, and
#           lock(key, 5, SECONDS) and unlock(key) inside.
# Guess:    free, free, held. "After lease time, the lock will be released", and locks are reentrant: an inner pair changes nothing for the
#           outer hold.
# Seen:     the lease is one of the whole lock, and each lock() sets it, whatever the outer one had. The inner lock() without a lease takes
#           away the end of the outer one; the inner lease of five seconds gives the outer hold one, and then another thread is in beside.
# Matters:  the lease is what was to free the lock of somebody who hangs, and any helper below that locks the same key undoes it, or ends
#           the lock of its caller. An inner lock must not make the hold shorter, and its unlock has to restore what it found.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

jars com.hazelcast:hazelcast:5.5.0
cat >Main.java <<'END'
import com.hazelcast.config.Config;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.map.IMap;
import java.util.concurrent.*;

class Main {
    static IMap<String, String> map() {
        Config config = new Config();
        config.setProperty("hazelcast.logging.type", "none").setProperty("hazelcast.phone.home.enabled", "false");
        var network = config.getNetworkConfig();
        network.getJoin().getMulticastConfig().setEnabled(false);
        network.getJoin().getAutoDetectionConfig().setEnabled(false);
        network.getInterfaces().setEnabled(true).addInterface("127.0.0.1");
        return Hazelcast.newHazelcastInstance(config).getMap("orders");
    }

    public static void main(String[] args) throws Exception {
        IMap<String, String> map = map();
        map.lock("lease", 5, TimeUnit.SECONDS);

        map.lock("lease, lock inside", 5, TimeUnit.SECONDS);
        map.lock("lease, lock inside");
        map.unlock("lease, lock inside");

        map.lock("no lease, lease inside");
        map.lock("no lease, lease inside", 5, TimeUnit.SECONDS);
        map.unlock("no lease, lease inside");

        map.lock("no lease");
        map.lock("no lease");
        map.unlock("no lease");

        Thread.sleep(10_000);
        var other = Executors.newSingleThreadExecutor();
        for (String key : new String[] {"lease", "lease, lock inside", "no lease", "no lease, lease inside"}) {
            System.out.println(key + ": another gets it: " + other.submit(() -> map.tryLock(key)).get());
        }
        System.exit(0);
    }
}
END
expect java_main 2>java.log <<'END'
lease: another gets it: true
lease, lock inside: another gets it: false
no lease: another gets it: false
no lease, lease inside: another gets it: true
END
