package bench;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;

import org.redisson.api.RLock;

import bench.Worker.Options;
import bench.Worker.Result;

/** Many locks are held. */
final class Holds extends Workload {
    private final int n = options.goroutines();
    private final List<Thread> crew = new ArrayList<>();
    private final CountDownLatch release = new CountDownLatch(1);
    private final Histogram latency = new Histogram();
    private Map<String, Double> extra;

    Holds(Options options) throws IOException {
        super(options);
    }

    @Override
    void prepare() throws InterruptedException {
        warmUp(Kind.PLAIN, redisson);
        RLock[] locks = new RLock[n];
        for (int i = 0; i < n; i++) {
            locks[i] = redisson.getLock("held:" + options.name() + ":" + i);
        }
        int keepers = Math.min(n, 64);
        CountDownLatch started = new CountDownLatch(keepers);
        CountDownLatch begin = new CountDownLatch(1);
        CountDownLatch taken = new CountDownLatch(keepers);
        for (int keeper = 0; keeper < keepers; keeper++) {
            int first = keeper;
            crew.add(Crew.start("keeper-" + keeper, () -> {
                started.countDown();
                begin.await();
                for (int i = first; i < n; i += keepers) {
                    locks[i].lock();
                }
                taken.countDown();
                release.await();
                for (int i = first; i < n; i += keepers) {
                    locks[i].unlock();
                }
            }));
        }
        started.await();
        Footprint before = Footprint.measure();
        begin.countDown();
        taken.await();
        Thread.sleep(options.watchdog().toMillis() / 3); // renewals are in flight
        extra = Footprint.measure().perUnit(before, n);
    }

    @Override
    Result run() throws InterruptedException {
        extra.put("cpu_ns", quiet());
        release.countDown();
        Crew.join(crew);
        return result(n, options.duration().toNanos(), latency, new long[0], extra);
    }
}
