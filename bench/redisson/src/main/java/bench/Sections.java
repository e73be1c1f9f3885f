package bench;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** Threads that lock and unlock until the time is over. */
final class Sections {
    /**
     * Each so many sections let others run while they are inside, as in the Go workers. Without, two
     * sections of nanoseconds would rarely meet, however broken the lock is.
     */
    private static final int LONG_SECTION = 16;

    final Histogram latency = new Histogram();
    final long[] ops;
    private final boolean wholePair;
    private final Duration section;
    private final CountDownLatch begin = new CountDownLatch(1);
    private final AtomicLong end = new AtomicLong();
    private final List<Thread> crew = new ArrayList<>();

    /** The threads take turns at the clients. */
    Sections(List<RedissonClient> clients, Witness witness, int threads, boolean ownNames, String name,
            Duration section) {
        ops = new long[threads];
        wholePair = ownNames;
        this.section = section;
        for (int i = 0; i < threads; i++) {
            int self = i;
            RLock lock = clients.get(i % clients.size()).getLock(ownNames ? name + ":" + i : name);
            Witness.Visitor visitor = witness.visitor(ownNames ? i : 0, i);
            crew.add(Crew.start("sections-" + i, () -> {
                begin.await();
                ops[self] = pass(lock, visitor);
            }));
        }
    }

    /** A lock call can not be taken back, so each thread's last section ends after the time. */
    private long pass(RLock lock, Witness.Visitor visitor) throws InterruptedException {
        for (long passed = 0; ; passed++) {
            long before = System.nanoTime();
            lock.lock();
            long locked = System.nanoTime();
            visitor.enter();
            if (passed % LONG_SECTION == 0) {
                Thread.yield();
            }
            TimeUnit.NANOSECONDS.sleep(section.toNanos());
            visitor.leave();
            lock.unlock();
            long after = System.nanoTime();
            latency.record((wholePair ? after : locked) - before);
            if (after - end.get() > 0) {
                return passed;
            }
        }
    }

    void during(Duration time) throws InterruptedException {
        end.set(System.nanoTime() + time.toNanos());
        begin.countDown();
        Crew.join(crew);
    }
}
