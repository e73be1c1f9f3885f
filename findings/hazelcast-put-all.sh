#!/usr/bin/env bash
# Hazelcast: put waits for the lock of its key, clear leaves that key alone, and putAll, setAll and removeAll write through the lock
#
# Run:      Hazelcast 5.5.0 (Maven), one member: a thread has map.lock("key"). Another thread writes that key, in each way that a map has,
#           and is given two seconds.
# Guess:    all wait, or the ones for many keys fail: a lock on a key is a lock against writes by others.
# Seen:     put, remove and merge wait. clear and evictAll return and leave the key. putAll, setAll and removeAll return at once, and the
#           holder's value is gone.
# Matters:  a read, a computation and a write under map.lock lose the update that a bulk write makes meanwhile, or overwrite it, without a
#           word to either side. A map with locks has to be written one key at a time, or each bulk write has to take the locks.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

jars com.hazelcast:hazelcast:5.5.0
cat >Main.java <<'END'
import com.hazelcast.config.Config;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.map.IMap;
import com.hazelcast.query.Predicates;
import java.util.*;

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
        Map<String, Runnable> writes = new LinkedHashMap<>();
        writes.put("put", () -> map.put("key", "other's"));
        writes.put("remove", () -> map.remove("key"));
        writes.put("merge", () -> map.merge("key", "other's", (old, value) -> value));
        writes.put("clear", () -> map.clear());
        writes.put("evictAll", () -> map.evictAll());
        writes.put("putAll", () -> map.putAll(Map.of("key", "other's")));
        writes.put("setAll", () -> map.setAll(Map.of("key", "other's")));
        writes.put("removeAll", () -> map.removeAll(Predicates.alwaysTrue()));
        for (var write : writes.entrySet()) {
            map.put("key", "holder's");
            map.lock("key");
            Thread other = new Thread(write.getValue());
            other.start();
            boolean waits = write.getKey().matches("put|remove|merge");
            other.join(waits ? 2_000 : 60_000);
            System.out.println(write.getKey() + ": waits: " + other.isAlive() + ", value: " + map.get("key"));
            map.unlock("key");
            other.join();
        }
        System.exit(0);
    }
}
END
expect java_main 2>java.log <<'END'
put: waits: true, value: holder's
remove: waits: true, value: holder's
merge: waits: true, value: holder's
clear: waits: false, value: holder's
evictAll: waits: false, value: holder's
putAll: waits: false, value: other's
setAll: waits: false, value: other's
removeAll: waits: false, value: null
END
