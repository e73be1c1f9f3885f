#!/usr/bin/env bash
# JetCache: tryLock of a key is its entry: a cached key cannot be locked, and what is put under its lock is gone at the unlock
#
# Run:      JetCache 2.7.8 with its cache in Redis by Jedis (Maven), Redis 8.2.3: under a lock the price of a book is computed and put into
#           the cache, while another process reads it and tries the lock. Then the lock is tried while a price is in the cache. The lock
#           is called "lock of book" at first, and then "book", as the entry is.
# Guess:    no difference: a lock is beside the value. tryLock takes a key of the cache, as the locks of Hazelcast's and Redisson's maps do,
#           which do not touch what is stored there.
# Seen:     with the key's own name, the lock is a random string in the place of the price. Who reads the price meanwhile gets a
#           ClassCastException; the price that is put replaces the lock, and the unlock removes the price. And null, for "another process
#           has the lock", is what one gets as long as a price is there.
# Matters:  "compute it once, under the lock of its key" computes it each time, and whoever has to update an entry is refused for as long as
#           there is one. A lock that lives among the values needs a name that no value has.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
jars com.alicp.jetcache:jetcache-redis:2.7.8
cat >Main.java <<'END'
import com.alicp.jetcache.*;
import com.alicp.jetcache.redis.RedisCacheBuilder;
import com.alicp.jetcache.support.*;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.JedisPool;

class Main {
    static Cache<String, Integer> prices(JedisPool redis) {
        return RedisCacheBuilder.createRedisCacheBuilder()
            .jedisPool(redis)
            .keyPrefix("price:")
            .keyConvertor(key -> key)
            .valueEncoder(JavaValueEncoder.INSTANCE)
            .valueDecoder(JavaValueDecoder.INSTANCE)
            .expireAfterWrite(10, TimeUnit.MINUTES)
            .buildCache();
    }

    static String price(Cache<String, Integer> prices, String name) {
        try {
            Integer price = prices.get(name);
            return String.valueOf(price);
        } catch (ClassCastException error) {
            return "ClassCastException";
        }
    }

    public static void main(String[] args) {
        JedisPool redis = new JedisPool("127.0.0.1", Integer.parseInt(args[0]));
        Cache<String, Integer> one = prices(redis), other = prices(redis);
        for (String lock : new String[] {"lock of book", "book"}) {
            System.out.println("the lock is called " + lock);
            one.remove("book");
            one.tryLockAndRun(lock, 1, TimeUnit.MINUTES, () -> {
                System.out.println("  somebody reads the price meanwhile: " + price(other, "book"));
                one.put("book", 12);
                System.out.println("  another one gets the lock: " + other.tryLockAndRun(lock, 1, TimeUnit.MINUTES, () -> {}));
            });
            System.out.println("  the price afterwards: " + price(other, "book"));
            one.put("book", 13);
            System.out.println("  with a price of 13, somebody gets the lock: " + one.tryLockAndRun(lock, 1, TimeUnit.MINUTES, () -> {}));
        }
        redis.close();
    }
}
END
expect java_main "$port" <<'END'
the lock is called lock of book
  somebody reads the price meanwhile: null
  another one gets the lock: false
  the price afterwards: 12
  with a price of 13, somebody gets the lock: true
the lock is called book
  somebody reads the price meanwhile: ClassCastException
  another one gets the lock: false
  the price afterwards: null
  with a price of 13, somebody gets the lock: false
END
