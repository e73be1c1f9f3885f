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

/** The lock goes to and fro between two clients. */
final class Handoff extends Workload {
    /** How long the other waits at least before the lock is let go, in ns: then it has to be woken. */
    private final long settle = TimeUnit.MILLISECONDS.toNanos(2) + 6 * options.rtt().toNanos();

    private final RedissonClient second = connect();
    private final Kind kind;
    private final Histogram latency = new Histogram();
    private long ops;
    private long elapsedNs;
    private long end;

    /** Who was the last to get the lock; -1 for nobody. Who reads it sees the sums that go with it. */
    private volatile int turn = -1;

    /** When the holder called unlock. */
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

        /** When this side called lock; 0 while it is not inside of it. */
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
            if (turn >= 0) { // the first has it from nobody
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
            // Who asks again at once is often faster than the one who is woken.
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
