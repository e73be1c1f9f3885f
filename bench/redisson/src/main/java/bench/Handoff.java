package bench;

import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

import bench.Worker.Options;
import bench.Worker.Result;

/** The lock passes back and forth between two clients. */
final class Handoff extends Workload {
    /** The minimum wait of the other client before the unlock, in ns, so that it must be woken. */
    private final long settle = TimeUnit.MILLISECONDS.toNanos(2) + 6 * options.rtt().toNanos();

    private final RedissonClient second = connect();
    private final Kind kind;
    private final Histogram latency = new Histogram();
    private long ops;
    private long elapsedNs;
    private long end;

    /** The last client that got the lock; -1 for none. Reading it makes the related sums visible. */
    private volatile int turn = -1;

    /** The time at which the holder called unlock. */
    private volatile long released;

    Handoff(Options options, Kind kind) throws IOException {
        super(options);
        this.kind = kind;
    }

    @Override
    void prepare() throws InterruptedException {
        warmUp(kind, redisson, second);
    }

    @Override
    Result run() throws InterruptedException {
        double cpu = Footprint.cpuNs();
        end = System.nanoTime() + options.duration().toNanos();
        CountDownLatch begin = new CountDownLatch(1);
        Side one = new Side(0, kind.of(redisson, options.name()).write());
        Side two = new Side(1, kind.of(second, options.name()).write());
        one.start(begin, two);
        two.start(begin, one);
        begin.countDown();
        Crew.join(List.of(one.thread, two.thread));
        return result(ops, elapsedNs, latency, new long[0], Map.of("cpu_ns", Footprint.cpuNs() - cpu));
    }

    private final class Side {
        private final int self;
        private final RLock lock;
        private final Witness.Visitor visitor;
        private Thread thread;

        /** The time at which this side called lock; 0 outside of the call. */
        private volatile long pending;

        private volatile boolean finished;

        Side(int self, RLock lock) {
            this.self = self;
            this.lock = lock;
            this.visitor = witness.visitor(0, self);
        }

        void start(CountDownLatch begin, Side other) {
            thread = Crew.start("side-" + self, () -> {
                begin.await();
                while (System.nanoTime() - end < 0) {
                    takeAndPass(other);
                }
                finished = true;
                LockSupport.unpark(other.thread);
            });
        }

        private void takeAndPass(Side other) {
            pending = System.nanoTime();
            lock.lock();
            long got = System.nanoTime();
            pending = 0;
            visitor.enter(Witness.ALONE);
            if (turn >= 0) { // the first was not handed over
                latency.record(got - released);
                elapsedNs += got - released;
                ops++;
            }
            turn = self;
            LockSupport.unpark(other.thread);
            while (!other.finished && !other.waitsLongEnough()) {
                LockSupport.parkNanos(settle / 20);
            }
            visitor.leave();
            released = System.nanoTime();
            lock.unlock();
            // A client that asks again at once is often faster than the one woken.
            while (!other.finished && turn == self) {
                LockSupport.park();
            }
        }

        private boolean waitsLongEnough() {
            long since = pending;
            return since != 0 && System.nanoTime() - since >= settle && Crew.waits(thread);
        }
    }
}
