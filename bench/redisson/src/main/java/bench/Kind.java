package bench;

import java.lang.reflect.Proxy;
import java.util.concurrent.ThreadLocalRandom;

import org.redisson.api.RLock;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RedissonClient;

/** A kind of lock, and how sections are passed with it. */
interface Kind {
    Kind PLAIN = (client, name) -> new Way(client.getLock(name), null, 0);
    Kind FAIR = (client, name) -> new Way(client.getFairLock(name), null, 0);
    Kind READERS = (client, name) -> new Way(null, client.getReadWriteLock(name).readLock(), 1);
    Kind MIXED = (client, name) -> {
        RReadWriteLock lock = client.getReadWriteLock(name);
        return new Way(lock.writeLock(), lock.readLock(), 0.95);
    };

    /** That many locks, taken together. The braces put them in one slot of a cluster. */
    Kind HUNDRED = (client, name) -> {
        RLock[] locks = new RLock[100];
        for (int i = 0; i < locks.length; i++) {
            locks[i] = client.getLock("{" + name + "}:" + i);
        }
        return new Way(client.getMultiLock(locks), null, 0);
    };

    /** One lock, which three layers take inside of each other. */
    Kind NESTED = (client, name) -> {
        RLock lock = client.getLock(name);
        RLock layers = (RLock) Proxy.newProxyInstance(Kind.class.getClassLoader(), new Class<?>[] {RLock.class}, (self, method, args) -> {
            method.invoke(lock, args);
            method.invoke(lock, args);
            return method.invoke(lock, args);
        });
        return new Way(layers, null, 0);
    };

    Way of(RedissonClient client, String name);

    /** The same without readers, if it has writers. */
    default Kind writing() {
        return (client, name) -> {
            Way way = of(client, name);
            return way.write() == null ? way : new Way(way.write(), null, 0);
        };
    }

    /**
     * How a thread passes.
     *
     * @param write lets nobody else in
     * @param read  lets other readers in
     * @param reads the part of the passes by read
     */
    record Way(RLock write, RLock read, double reads) {

        /** The lock of the next pass. */
        RLock next() {
            return reads > 0 && ThreadLocalRandom.current().nextDouble() < reads ? read : write;
        }
    }
}
