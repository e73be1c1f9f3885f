package bench;

import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.locks.LockSupport;

import org.redisson.misc.ReclosableLatch;

/** Threads whose failure ends the process: otherwise the other threads would wait for it. */
final class Crew {

    /** What a thread does. */
    interface Body {
        void run() throws Exception;
    }

    private Crew() {}

    /** Starts a thread that ends with its body, or with the process. */
    static Thread start(String name, Body body) {
        Thread thread = new Thread(() -> {
            try {
                body.run();
            } catch (Throwable e) {
                Worker.fail(e);
            }
        }, name);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    static void join(List<Thread> crew) throws InterruptedException {
        for (Thread thread : crew) {
            thread.join();
        }
    }

    /**
     * Whether a thread in RLock.lock or RCountDownLatch.await was refused, has subscribed and waits for the
     * message: only then it is parked on a semaphore, or on Redisson's latch. During a command it is parked on a
     * future.
     */
    static boolean waits(Thread thread) {
        Object blocker = LockSupport.getBlocker(thread);
        return blocker instanceof ReclosableLatch
                || blocker != null && blocker.getClass().getEnclosingClass() == Semaphore.class;
    }
}
