package bench;

import java.lang.reflect.Proxy;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/** A kind of lock, and how threads pass sections with it. */
interface Kind {
    Kind PLAIN = (client, name) -> new Way(client.getLock(name), null, 0, 0);
    Kind FAIR = (client, name) -> new Way(client.getFairLock(name), null, 0, 0);
    Kind READERS = (client, name) -> new Way(null, client.getReadWriteLock(name).readLock(), 1, Witness.TOGETHER);
    Kind MIXED = (client, name) -> {
        RReadWriteLock lock = client.getReadWriteLock(name);
        return new Way(lock.writeLock(), lock.readLock(), 0.95, Witness.TOGETHER);
    };

    /** That many locks, taken together. The braces put them into one cluster slot. */
    Kind HUNDRED = (client, name) -> {
        RLock[] locks = new RLock[100];
        for (int i = 0; i < locks.length; i++) {
            locks[i] = client.getLock("{" + name + "}:" + i);
        }
        return new Way(client.getMultiLock(locks), null, 0, 0);
    };

    /** One lock, taken by three nested layers. */
    Kind NESTED = (client, name) -> {
        RLock lock = client.getLock(name);
        RLock layers = (RLock) Proxy.newProxyInstance(Kind.class.getClassLoader(), new Class<?>[] {RLock.class}, (self, method, args) -> {
            method.invoke(lock, args);
            method.invoke(lock, args);
            return method.invoke(lock, args);
        });
        return new Way(layers, null, 0, 0);
    };

    /** That many locks, taken in turn. A way belongs to one thread. */
    Kind AFFINE = (client, name) -> {
        RLock[] locks = new RLock[64];
        for (int i = 0; i < locks.length; i++) {
            locks[i] = client.getLock(name + ":" + i);
        }
        int[] at = new int[1];
        RLock next = (RLock) Proxy.newProxyInstance(Kind.class.getClassLoader(), new Class<?>[] {RLock.class}, (self, method, args) -> {
            RLock lock = locks[at[0]];
            if (method.getName().equals("unlock")) {
                at[0] = (at[0] + 1) % locks.length;
            }
            return method.invoke(lock, args);
        });
        return new Way(next, null, 0, 0);
    };

    /** A semaphore; a permit is acquired and released like a lock. */
    Kind SEMAPHORE = (client, name) -> {
        RSemaphore semaphore = client.getSemaphore(name);
        semaphore.trySetPermits(10);
        RLock permit = (RLock) Proxy.newProxyInstance(Kind.class.getClassLoader(), new Class<?>[] {RLock.class}, (self, method, args) -> {
            switch (method.getName()) {
                case "lock" -> semaphore.acquire();
                case "unlock" -> semaphore.release();
                default -> throw new UnsupportedOperationException(method.getName());
            }
            return null;
        });
        return new Way(null, permit, 1, 10);
    };

    /** The same with permits that expire after 30 s. A way belongs to one thread. */
    Kind PERMITS = (client, name) -> {
        RPermitExpirableSemaphore semaphore = client.getPermitExpirableSemaphore(name);
        semaphore.trySetPermits(10);
        String[] id = new String[1];
        RLock permit = (RLock) Proxy.newProxyInstance(Kind.class.getClassLoader(), new Class<?>[] {RLock.class}, (self, method, args) -> {
            switch (method.getName()) {
                case "lock" -> id[0] = semaphore.acquire(30, TimeUnit.SECONDS);
                case "unlock" -> semaphore.release(id[0]);
                default -> throw new UnsupportedOperationException(method.getName());
            }
            return null;
        });
        return new Way(null, permit, 1, 10);
    };

    Way of(RedissonClient client, String name);

    /** The same without readers, if it has writers. */
    default Kind writing() {
        return (client, name) -> {
            Way way = of(client, name);
            return way.write() == null ? way : new Way(way.write(), null, 0, 0);
        };
    }

    /**
     * How a thread passes.
     *
     * @param write excludes everybody else
     * @param read  admits others that come by read
     * @param reads the share of passes by read
     * @param room  how many may be inside together by read
     */
    record Way(RLock write, RLock read, double reads, long room) {

        /** The lock of the next pass. */
        RLock next() {
            return reads > 0 && ThreadLocalRandom.current().nextDouble() < reads ? read : write;
        }
    }
}
