package shop;

import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RMap;
import org.redisson.api.RStream;
import org.redisson.api.RedissonClient;
import org.redisson.api.stream.StreamAddArgs;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** Ships parcels of orders. ship.go does the same, under the same locks. */
public final class Shop {
    private final RedissonClient redisson;
    private final RMap<String, String> parcels;
    private final RStream<String, String> journal;

    private Shop(RedissonClient redisson) {
        this.redisson = redisson;
        this.parcels = redisson.getMap("migrate:parcels", StringCodec.INSTANCE);
        this.journal = redisson.getStream("migrate:journal", StringCodec.INSTANCE);
    }

    /** The arguments are the address of Redis and the watchdog time in ms. */
    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.setLockWatchdogTimeout(Long.parseLong(args[1])); // as on the Go side
        config.useSingleServer().setAddress(args[0]);
        RedissonClient redisson = Redisson.create(config);
        try {
            Shop shop = new Shop(redisson);
            shop.ship("order:0", 0); // loads classes and scripts
            System.out.println("ready");
            while (System.in.read() >= 0) {
                // until the Go side begins
            }
            shop.work();
        } finally {
            redisson.shutdown();
        }
    }

    private void work() throws Exception {
        List<Callable<Void>> jobs = List.of(
                () -> shipAll("order:1", 5, 20, 20),
                () -> shipAll("order:2", 5, 20, 20),
                () -> shipAll("order:big", 1, 0, 6000)); // longer than the watchdog time
        ExecutorService pool = Executors.newFixedThreadPool(jobs.size());
        try {
            for (Future<Void> done : pool.invokeAll(jobs)) {
                done.get();
            }
        } finally {
            pool.shutdown();
        }
    }

    /** Ships parcels of one order, with a pause before each. */
    private Void shipAll(String order, int number, long pauseMs, long workMs) throws InterruptedException {
        for (int i = 0; i < number; i++) {
            Thread.sleep(pauseMs);
            ship(order, workMs);
        }
        return null;
    }

    private void ship(String order, long workMs) throws InterruptedException {
        RLock lock = redisson.getLock(order);
        lock.lock();
        try {
            write(order, "in", 0, 0);
            Thread.sleep(workMs);
            count(order);
        } finally {
            lock.unlock();
        }
    }

    /** Adds a parcel to an order. It takes the lock, too: a second level inside ship. */
    private void count(String order) {
        RLock lock = redisson.getLock(order);
        lock.lock();
        try {
            String before = parcels.get(order);
            long parcel = before == null ? 1 : Long.parseLong(before) + 1;
            parcels.fastPut(order, Long.toString(parcel));
            write(order, "out", parcel, lock.getHoldCount());
        } finally {
            lock.unlock();
        }
    }

    private void write(String order, String event, long parcel, int levels) {
        journal.add(StreamAddArgs.entries(Map.of(
                "order", order, "side", "java", "owner", redisson.getId() + ":" + Thread.currentThread().getId(), "event", event,
                "parcel", Long.toString(parcel), "levels", Integer.toString(levels))));
    }
}
