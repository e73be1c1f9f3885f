package bench;

import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;

import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** Threads that lock and unlock until the time is over. */
final class Sections {
    /**
     * Every that many sections, a thread yields to others while inside, as in the Go workers. Otherwise two
     * sections of nanoseconds would rarely meet, however broken the lock is.
     */
    private static final int LONG_SECTION = 16;

    /** How long nobody may pass before the waiters are given up, in s, as in the Go workers. */
    private static final int STALL = 5;

    final Histogram latency = new Histogram();
    private final AtomicLongArray ops;
    private final boolean wholePair;
    private final Duration section;
    private final CountDownLatch begin = new CountDownLatch(1);
    private final AtomicLong end = new AtomicLong();
    private final Semaphore ended = new Semaphore(0);

    /** The threads are spread over the clients. */
    Sections(Kind kind, List<RedissonClient> clients, Witness witness, int threads, boolean ownNames, String name,
            Duration section) {
        ops = new AtomicLongArray(threads);
        wholePair = ownNames;
        this.section = section;
        for (int i = 0; i < threads; i++) {
            int self = i;
            Kind.Way way = kind.of(clients.get(i % clients.size()), ownNames ? name + ":" + i : name);
            Witness.Visitor visitor = witness.visitor(ownNames ? i : 0, i);
            Crew.start("sections-" + i, () -> {
                begin.await();
                pass(way, visitor, self);
                ended.release();
            });
        }
    }

    /** A lock call cannot be withdrawn, so each thread's last section ends after the time. */
    private void pass(Kind.Way way, Witness.Visitor visitor, int self) throws InterruptedException {
        for (long passed = 0; ; passed++) {
            ops.lazySet(self, passed);
            RLock lock = way.next();
            long before = System.nanoTime();
            lock.lock();
            long locked = System.nanoTime();
            visitor.enter(lock == way.read() ? way.room() : Witness.ALONE);
            if (passed % LONG_SECTION == 0) {
                Thread.yield();
            }
            TimeUnit.NANOSECONDS.sleep(section.toNanos());
            visitor.leave();
            lock.unlock();
            long after = System.nanoTime();
            latency.record((wholePair ? after : locked) - before);
            if (after - end.get() > 0) {
                return;
            }
        }
    }

    /** Returns the number of stuck threads, which still wait long after all others are done. */
    int during(Duration time) throws InterruptedException {
        end.set(System.nanoTime() + time.toNanos());
        begin.countDown();
        int left = ops.length();
        for (long patience = time.toNanos(); left > 0; patience = 0, left--) {
            if (!ended.tryAcquire(patience + TimeUnit.SECONDS.toNanos(STALL), TimeUnit.NANOSECONDS)) {
                break;
            }
        }
        return left;
    }

    /** The number of sections passed by each thread in the time. */
    long[] ops() {
        long[] copy = new long[ops.length()];
        Arrays.setAll(copy, ops::get);
        return copy;
    }
}
