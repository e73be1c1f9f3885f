package bench;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

import io.netty.channel.EventLoopGroup;
import io.netty.channel.nio.NioEventLoopGroup;

import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

import bench.Worker.Options;
import bench.Worker.Result;

/**
 * The workloads, as in the workers in Go.
 *
 * <pre>
 * pair, names  each of --goroutines threads locks and unlocks its own name. The latency is of both.
 * contended, local,
 * herd,
 * asymmetric   they share one name. The latency is of lock alone.
 * handoff      one thread each of two clients, one name; the holder keeps the lock until the other is
 *              certain to wait. The latency is from the call of unlock to the return of the other's lock,
 *              the elapsed time the sum of latencies.
 * fair,
 * fair-herd,
 * fair-handoff as contended, herd and handoff, with a fair lock.
 * readers      as local, with the read side of a read/write lock.
 * mixed        as contended, with a read/write lock, which 95 of 100 sections read.
 * all-100      as pair, with a multi lock of a hundred names.
 * nested       as pair, locked and unlocked in three nested levels.
 * affinity     as pair, with 64 names that one thread locks in turn.
 * ping-pong    one thread locks and unlocks one name, as two clients in turn. The latency is of both.
 * semaphore,
 * semaphore-herd as contended and herd, with a permit of a semaphore that has 10.
 * permits,
 * permits-herd the same with permits that expire.
 * latch,
 * latch-herd   threads of all workers wait for a latch, which the first worker repeatedly sets to 1 and counts
 *              down. ops are these rounds, latency and elapsed time their times from the call of the countdown
 *              until all were through.
 * waiters      --goroutines threads wait for a lock that another client holds through the window. ops,
 *              elapsed time and latency are those of the drain that follows.
 * holds        --goroutines names are held through the window; they are the ops. Unlocking them
 *              afterwards fails if one was lost.
 * </pre>
 *
 * Extra numbers: "cpu_ns" of the process in the window; and for one waiter (its own thread not
 * counted) or one hold, "heap_bytes" and "goroutines", which are threads.
 *
 * <p>Both methods of a workload run in one thread, as locks belong to threads.
 */
abstract class Workload {
    final Options options;
    final Witness witness;
    final RedissonClient redisson;

    /** Threads that still waited long after all others were done. */
    int stuck;

    /** The threads shared by several clients, as many as one has by default; null with one client. */
    private final EventLoopGroup loops;
    private final ExecutorService pool;

    Workload(Options options) throws IOException {
        this.options = options;
        this.witness = options.witness().isEmpty()
                ? Witness.ofThisProcess(options.goroutines())
                : Witness.open(options.witness(), options.worker());
        boolean several = options.clients() > 1;
        this.loops = several ? new NioEventLoopGroup(new Config().getNettyThreads()) : null;
        this.pool = several ? Executors.newFixedThreadPool(new Config().getThreads()) : null;
        this.redisson = connect();
    }

    static Workload open(Options options) throws IOException {
        return switch (options.workload()) {
            case "pair", "names" -> new Repeat(options, Kind.PLAIN, true);
            case "contended", "local", "herd", "asymmetric" -> new Repeat(options, Kind.PLAIN, false);
            case "handoff" -> new Handoff(options, Kind.PLAIN);
            case "fair", "fair-herd" -> new Repeat(options, Kind.FAIR, false);
            case "fair-handoff" -> new Handoff(options, Kind.FAIR);
            case "readers" -> new Repeat(options, Kind.READERS, false);
            case "mixed" -> new Repeat(options, Kind.MIXED, false);
            case "all-100" -> new Repeat(options, Kind.HUNDRED, true);
            case "nested" -> new Repeat(options, Kind.NESTED, true);
            case "affinity" -> new Repeat(options, Kind.AFFINE, true);
            case "ping-pong" -> new Turns(options);
            case "semaphore", "semaphore-herd" -> new Repeat(options, Kind.SEMAPHORE, false);
            case "permits", "permits-herd" -> new Repeat(options, Kind.PERMITS, false);
            case "latch", "latch-herd" -> new Latches(options);
            case "waiters" -> new Waiters(options);
            case "holds" -> new Holds(options);
            default -> throw new IllegalArgumentException("unknown workload " + options.workload());
        };
    }

    /** The preparation, which is not measured. */
    abstract void prepare() throws Exception;

    /** The window. */
    abstract Result run() throws Exception;

    /** Redisson with its defaults, except for address, watchdog and shared threads. */
    final RedissonClient connect() {
        Config config = new Config();
        config.setLockWatchdogTimeout(options.watchdog().toMillis());
        config.setEventLoopGroup(loops).setExecutor(pool);
        config.useSingleServer().setAddress("redis://" + options.addr());
        return Redisson.create(config);
    }

    /**
     * Locks with and without waiting in turn, until the compiler is done. The limit is CPU time, because several
     * processes on few cores get less of it. Only writers wait: in 4.7.0 a reader that waits beside others is not
     * always woken, and sleeps until the lease ends. It uses a separate client: in Redisson 4.7.0 each watchdog
     * timer left behind by a short hold keeps renewing later long holds.
     */
    final void warmUp(Kind kind, RedissonClient... measured) throws InterruptedException {
        int threads = Math.max(2, Math.min(options.goroutines(), 64));
        String name = "warm:" + options.name() + ":" + ProcessHandle.current().pid();
        RedissonClient client = connect();
        double end = Footprint.cpuNs() + options.warmUp().toNanos();
        for (boolean ownNames = true; Footprint.cpuNs() < end; ownNames = !ownNames) {
            new Sections(ownNames ? kind : kind.writing(), List.of(client), Witness.ofThisProcess(threads), threads, ownNames, name, Duration.ZERO)
                    .during(Duration.ofMillis(250));
        }
        client.shutdown(0, 10, TimeUnit.SECONDS);
        for (RedissonClient next : measured) {
            fillPools(kind, next, threads, name);
        }
    }

    /** A few pairs on many connections. A hold with a lease leaves no timer behind. */
    private static void fillPools(Kind kind, RedissonClient client, int threads, String name) throws InterruptedException {
        List<Thread> crew = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Kind.Way way = kind.of(client, name + ":" + i);
            crew.add(Crew.start("pool-" + i, () -> {
                for (int pairs = 0; pairs < 10; pairs++) {
                    RLock lock = way.next();
                    lock.lock(30, TimeUnit.SECONDS);
                    lock.unlock();
                }
            }));
        }
        Crew.join(crew);
    }

    /**
     * A window with only Redisson's own activity, until the harness has counted the commands. Returns the CPU time
     * of the process in it, scaled to the requested duration.
     */
    final double quiet() throws InterruptedException {
        long start = System.nanoTime();
        double cpu = Footprint.cpuNs();
        Thread.sleep(options.duration().toMillis());
        Worker.COUNTED.await();
        return (Footprint.cpuNs() - cpu) * options.duration().toNanos() / (System.nanoTime() - start);
    }

    final Result result(long ops, long elapsedNs, Histogram latency, long[] perGoroutine,
            Map<String, Double> extra) {
        return new Result(ops, elapsedNs, latency, perGoroutine,
                witness.sections(), witness.violations(), stuck, extra);
    }
}
