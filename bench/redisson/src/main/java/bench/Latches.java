package bench;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

import org.redisson.api.RCountDownLatch;
import org.redisson.api.RedissonClient;

import bench.Worker.Options;
import bench.Worker.Result;

/**
 * Threads of all workers wait for a latch that the first worker counts down. The workers synchronize through the witness: the
 * first worker is inside, alone, from the set to the countdown, so a thread that gets through too early is a violation.
 */
final class Latches extends Workload {
    /** The workers' polling interval on shared memory, in ns. */
    private static final long POLL = TimeUnit.MICROSECONDS.toNanos(50);

    /** The time after which waiting threads are given up, in ns. */
    private static final long STALL = TimeUnit.SECONDS.toNanos(5);

    private final int n = options.clients() * options.goroutines();
    private final CyclicBarrier begin = new CyclicBarrier(n + 1);
    private final List<Thread> crew = new ArrayList<>();
    private final Histogram latency = new Histogram();
    private RedissonClient leader;
    private long rounds;
    private long elapsedNs;

    Latches(Options options) throws IOException {
        super(options);
    }

    @Override
    void prepare() throws Exception {
        RedissonClient[] clients = new RedissonClient[options.clients()];
        Arrays.setAll(clients, i -> i == 0 ? redisson : connect());
        leader = connect();
        String warm = "warm:" + options.name() + ":" + ProcessHandle.current().pid();
        Witness own = Witness.ofThisProcess(1);
        double end = Footprint.cpuNs() + options.warmUp().toNanos();
        do { // until the compiler is done and each client has its connections
            RCountDownLatch latch = leader.getCountDownLatch(warm);
            latch.trySetCount(1);
            List<Thread> waiters = new ArrayList<>();
            for (int i = 0; i < n; i++) {
                waiters.add(waiter(own.visitor(0, i), clients[i % clients.length].getCountDownLatch(warm)));
            }
            awaitParked(waiters);
            latch.countDown();
            Crew.join(waiters);
        } while (Footprint.cpuNs() < end);
        for (int i = 0; i < n; i++) {
            Witness.Visitor visitor = witness.visitor(0, i);
            RCountDownLatch latch = clients[i % clients.length].getCountDownLatch(options.name());
            crew.add(Crew.start("waiter-" + i, () -> {
                while (true) { // ends with the process
                    begin.await();
                    pass(visitor, latch);
                }
            }));
        }
        witness.addWaiting(n); // before any worker starts, so that each knows their number
    }

    private static Thread waiter(Witness.Visitor visitor, RCountDownLatch latch) {
        return Crew.start("warm-up", () -> pass(visitor, latch));
    }

    private static void pass(Witness.Visitor visitor, RCountDownLatch latch) throws InterruptedException {
        latch.await();
        visitor.enter(Witness.TOGETHER);
        visitor.leave();
    }

    private static void awaitParked(List<Thread> waiters) {
        for (Thread waiter : waiters) {
            while (waiter.isAlive() && !Crew.waits(waiter)) {
                LockSupport.parkNanos(POLL);
            }
        }
    }

    @Override
    Result run() throws Exception {
        long all = witness.waiting();
        Thread others = Crew.start("rounds", this::join);
        double cpu = Footprint.cpuNs();
        if (options.worker() == 0) {
            lead(all, leader.getCountDownLatch(options.name()));
            witness.noMore();
        }
        others.join();
        return result(rounds, elapsedNs, latency, new long[0], Map.of("cpu_ns", Footprint.cpuNs() - cpu));
    }

    /** Makes all threads wait for each latch that is set, until there are no more. */
    private void join() throws Exception {
        for (long round = 0; ; round++) {
            while (!witness.closed(round)) {
                if (witness.waiting() < 0) {
                    return;
                }
                LockSupport.parkNanos(POLL);
            }
            begin.await();
            awaitParked(crew);
            witness.addWaiting(n);
            // The threads return to the barrier when they are through.
            while (begin.getNumberWaiting() < n) {
                if (witness.waiting() < 0) { // the first worker has given up the remaining threads
                    return;
                }
                LockSupport.parkNanos(POLL);
            }
        }
    }

    /** Opens the latch for all until the window closes. */
    private void lead(long all, RCountDownLatch latch) {
        Witness.Visitor visitor = witness.visitor(0, n);
        long end = System.nanoTime() + options.duration().toNanos();
        while (System.nanoTime() - end < 0) {
            latch.trySetCount(1);
            visitor.enter(Witness.ALONE);
            while (witness.waiting() < all * (rounds + 2)) { // the counts from before the window, and of each round
                LockSupport.parkNanos(POLL);
            }
            visitor.leave();
            long before = System.nanoTime();
            latch.countDown();
            while (witness.through() < all * (rounds + 1)) {
                if (System.nanoTime() - before > STALL) {
                    stuck = (int) (all * (rounds + 1) - witness.through());
                    return;
                }
                LockSupport.parkNanos(POLL);
            }
            long took = System.nanoTime() - before;
            latency.record(took);
            rounds++;
            elapsedNs += took;
        }
    }
}
