package bench;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

import org.redisson.api.RLock;

import bench.Worker.Options;
import bench.Worker.Result;

/** Many threads wait for one lock. */
final class Waiters extends Workload {
    private final int n = options.goroutines();
    private final RLock held = connect().getLock(options.name());
    private final RLock lock = redisson.getLock(options.name());
    private final Witness.Visitor holder = witness.visitor(0, n);
    private final Histogram latency = new Histogram();
    private final List<Thread> crew = new ArrayList<>();
    private Map<String, Double> extra;
    private volatile long released;

    Waiters(Options options) throws IOException {
        super(options);
    }

    @Override
    void prepare() throws InterruptedException {
        warmUp(Kind.PLAIN, redisson);
        held.lock();
        holder.enter(Witness.ALONE);
        CountDownLatch started = new CountDownLatch(n);
        CountDownLatch begin = new CountDownLatch(1);
        for (int i = 0; i < n; i++) {
            Witness.Visitor visitor = witness.visitor(0, i);
            crew.add(Crew.start("waiter-" + i, () -> {
                started.countDown();
                begin.await();
                lock.lock();
                latency.record(System.nanoTime() - released);
                visitor.enter(Witness.ALONE);
                visitor.leave();
                lock.unlock();
            }));
        }
        started.await();
        Footprint before = Footprint.measure();
        begin.countDown();
        for (Thread waiter : crew) {
            while (!Crew.waits(waiter)) {
                LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(1));
            }
        }
        extra = Footprint.measure().perUnit(before, n);
    }

    @Override
    Result run() throws InterruptedException {
        extra.put("cpu_ns", quiet());
        holder.leave();
        released = System.nanoTime();
        held.unlock();
        Crew.join(crew);
        return result(n, System.nanoTime() - released, latency, new long[0], extra);
    }
}
